package main

import (
	"bytes"
	"context"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// ticketFileBytesMax bounds a ticket in any form: its length has two bytes, and a session around it has a chain of certificates.
const ticketFileBytesMax = 1 << 20

func (c *cli) ticketKeysInspect() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "inspect TICKET|FILE|-",
		Short: "Say what a captured ticket is, and whether and why a node would resume its session",
		Long: `Say what a captured session ticket is: which key it is under, who issued it for which name, and whether the answering node would resume
its session, and why not.

TICKET is hexadecimal or base64; FILE has the same, the ticket's bytes as they are, or a session that openssl s_client -sess_out wrote.
Exit 1 if the session would not be resumed.`,
		Example: "  openssl s_client -connect shop.example:443 -servername shop.example -sess_out shop.session </dev/null\n  lbctl ticket-keys inspect shop.session --node edge-2",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			ticket, err := c.readTicket(args[0])
			if err != nil {
				return err
			}
			meant, err := oneNode(node)
			if err != nil {
				return err
			}
			return c.call(func(cl *client) error {
				answer, err := lbdv1.NewSessionTicketServiceClient(cl.conn).InspectTicket(ctx, &lbdv1.InspectTicketRequest{Ticket: ticket, Node: meant})
				if err != nil {
					return err
				}
				c.printTicket(answer)
				if !answer.GetResumes() {
					return &failure{code: exitNo}
				}
				return nil
			})
		}),
	}
	nodeFlag(cmd, &node)
	return takesNodeLocal(cmd)
}

func (c *cli) printTicket(a *lbdv1.InspectTicketResponse) {
	c.print(result{value: document.OfAnswer(a), table: func(w *table) {
		row := func(name, value string) {
			if value != "" {
				w.row(name, value)
			}
		}
		row("NODE", a.GetNode())
		row("KEY NAME", a.GetKeyName())
		if a.GetEpoch() != 0 {
			row("EPOCH", fmt.Sprint(a.GetEpoch()))
		}
		row("ISSUER", a.GetIssuer())
		row("SERVER NAME", a.GetServerName())
		row("LISTENER", a.GetListener())
		row("VERSION", a.GetVersion())
		row("ISSUED", moment(a.GetIssueTime()))
		row("AGE", ageText(a.GetAge()))
		row("RESUMES", yesNo(a.GetResumes()))
		row("RESULT", a.GetResult())
		row("WHY", a.GetReason())
	}})
}

// readTicket reads a ticket from an argument, a file or standard input.
func (c *cli) readTicket(arg string) ([]byte, error) {
	if ticket := ticketIn([]byte(arg)); ticket != nil {
		return ticket, nil
	}
	var text []byte
	var err error
	if arg == "-" {
		text, err = io.ReadAll(io.LimitReader(c.stdin, ticketFileBytesMax))
	} else {
		text, err = document.ReadFile(arg, ticketFileBytesMax)
	}
	if err != nil {
		return nil, fail(exitUsage, "%w", err)
	}
	if block, _ := pem.Decode(text); block != nil {
		ticket := ticketOfSession(block.Bytes)
		if ticket == nil {
			return nil, fail(exitUsage, "%s is a session without a ticket: TLS 1.3 servers send one behind the handshake, keep the connection open for a moment", arg)
		}
		return ticket, nil
	}
	if ticket := ticketIn(bytes.TrimSpace(text)); ticket != nil {
		return ticket, nil
	}
	return text, nil
}

// ticketIn is a ticket in hexadecimal or base64; nil: the text is neither, or too short for one.
func ticketIn(text []byte) []byte {
	const ticketCharsMin = 32
	if len(text) < ticketCharsMin {
		return nil
	}
	if ticket, err := hex.DecodeString(string(text)); err == nil {
		return ticket
	}
	if ticket, err := base64.StdEncoding.DecodeString(string(text)); err == nil {
		return ticket
	}
	return nil
}

// ticketField is the number of the ticket among the fields of openssl's SSL_SESSION (ssl/ssl_asn1.c).
const ticketField = 10

// ticketOfSession finds the ticket in a session as openssl writes it; nil: there is none.
func ticketOfSession(der []byte) []byte {
	var session asn1.RawValue
	if _, err := asn1.Unmarshal(der, &session); err != nil {
		return nil
	}
	for rest := session.Bytes; len(rest) > 0; {
		var field asn1.RawValue
		var err error
		if rest, err = asn1.Unmarshal(rest, &field); err != nil {
			return nil
		}
		var ticket []byte
		if field.Class == asn1.ClassContextSpecific && field.Tag == ticketField {
			if _, err := asn1.Unmarshal(field.Bytes, &ticket); err == nil {
				return ticket
			}
		}
	}
	return nil
}
