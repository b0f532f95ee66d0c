package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) tokenCommand() *cobra.Command {
	return noun("token", "Credentials of people and pipelines", c.tokenCreate(), c.tokenList(), c.tokenRevoke())
}

// roles are what --role takes, the least first.
var roles = []lbdv1.Role{lbdv1.Role_ROLE_VIEWER, lbdv1.Role_ROLE_OPERATOR, lbdv1.Role_ROLE_EDITOR, lbdv1.Role_ROLE_ADMIN}

func (c *cli) tokenCreate() *cobra.Command {
	request := &lbdv1.CreateTokenRequest{}
	var role, expires, certificate string
	cmd := &cobra.Command{
		Use:   "create --role ROLE",
		Short: "Make a token, or a client certificate a credential",
		Long: `Make a token, and write its secret to stdout, this once and nowhere else. What it may do never changes: who needs another role
makes another one.

ROLE is one of viewer (read everything but secrets), operator (also drain and weigh backends), editor (also change resources) and
admin (also tokens, owners, settings, keys, backups). With --owner it may change only what these owners have.

With --certificate the public key of a client certificate is the credential, whoever signed it: there is no secret then.`,
		Example: `  lbctl token create --role editor --owner web --expires 90d --description "web's pipeline" >token
  lbctl token create --role viewer --certificate laptop.pem`,
		Args: cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) (err error) {
			if request.Role, err = parseRole(role); err != nil {
				return err
			}
			if request.ExpireTime, err = parseExpiry(expires); err != nil {
				return err
			}
			if certificate != "" {
				pem, err := document.ReadFile(certificate, secretBytesMax)
				if err != nil {
					return fail(exitUsage, "--certificate: %w", err)
				}
				if strings.Contains(string(pem), "PRIVATE KEY-----") {
					return fail(exitUsage, "--certificate: there is a private key in %s, which is nobody else's business: give the certificate alone", certificate)
				}
				request.CertificatePem = string(pem)
			}
			request.RequestId = newRequestID()
			return c.call(func(cl *client) error { return c.createToken(ctx, cl, request) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&role, "role", "", "viewer, operator, editor or admin")
	flags.StringArrayVar(&request.Owners, "owner", nil, "bind it to this owner (repeatable; default: not bound)")
	flags.StringVar(&expires, "expires", "", "when it ends, as 90d or 12h from now, or a time such as 2027-01-31T12:00:00Z (default: never)")
	flags.StringVar(&request.Description, "description", "", "for people: whose it is")
	flags.StringVar(&certificate, "certificate", "", "file with a client certificate in PEM, whose key is the credential")
	if err := cmd.MarkFlagRequired("role"); err != nil {
		panic(err)
	}
	return cmd
}

func parseRole(text string) (lbdv1.Role, error) {
	var words []string
	for _, r := range roles {
		if strings.EqualFold(text, roleWord(r)) {
			return r, nil
		}
		words = append(words, roleWord(r))
	}
	return 0, fail(exitUsage, "--role is one of %s, not %q", strings.Join(words, ", "), text)
}

// parseExpiry reads when something ends; empty: never.
func parseExpiry(text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if span, ok := parseSpan(text); ok {
		return timestamppb.New(time.Now().Add(span)), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return timestamppb.New(at), nil
	}
	return nil, fail(exitUsage, "--expires takes a length of time such as 90d or 12h, or a time such as 2027-01-31T12:00:00Z, not %q", text)
}

func (c *cli) createToken(ctx context.Context, cl *client, request *lbdv1.CreateTokenRequest) error {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.CreateTokenResponse, error) { return cl.auth.CreateToken(ctx, request) })
	if vs := violations(err); len(vs) > 0 {
		for _, v := range vs {
			if strings.HasPrefix(v.GetField(), "owners") {
				v.Field = "owner"
			}
		}
		c.tellViolations(vs)
		return fail(exitUsage, "no token was made")
	}
	if err != nil {
		return err
	}
	token := answer.GetToken()
	if answer.GetSecret() == "" && request.GetCertificatePem() == "" {
		return fail(exitUnavailable, "token %s was made, but the connection broke before its secret came: revoke it (`lbctl token revoke %s`) and make another one",
			token.GetId(), token.GetId())
	}
	for _, w := range answer.GetWarnings() {
		fmt.Fprintf(c.stderr, "warning: %s\n", oneLine(w))
	}
	if token.GetExpireTime() == nil {
		fmt.Fprintln(c.stderr, "warning: it never expires; --expires 90d makes one that does")
	}
	shown := answer.GetSecret()
	if shown == "" {
		shown = token.GetId()
	}
	c.print(result{value: document.OfAnswer(answer), names: []string{token.GetId()}, table: func(*table) {
		_, err = fmt.Fprintln(c.stdout, shown)
	}})
	if err != nil {
		return fail(exitUsage, "write the secret: %w: token %s is of no use, revoke it (`lbctl token revoke %s`)", err, token.GetId(), token.GetId())
	}
	c.sayHowToUse(answer)
	return nil
}

// sayHowToUse tells what to type where the token is used.
func (c *cli) sayHowToUse(answer *lbdv1.CreateTokenResponse) {
	token := answer.GetToken()
	until := ""
	if token.GetExpireTime() != nil {
		until = ", until " + moment(token.GetExpireTime())
	}
	c.say("token %s: role %s, owners %s%s", token.GetId(), roleWord(token.GetRole()), ownersWord(token.GetOwners()), until)
	switch {
	case answer.GetEndpoint() == "" || answer.GetCaPin() == "":
		c.say("this node has no control port (`lbd run --control HOST:PORT`): it is of use on the machines of the nodes alone")
	case answer.GetSecret() == "":
		c.say("where it is used:\n  lbctl context set NAME --endpoints %s --ca %s --cert FILE --key FILE", answer.GetEndpoint(), answer.GetCaPin())
	default:
		c.say("where it is used, with the secret in FILE:\n  lbctl context set NAME --endpoints %s --ca %s --token-file FILE\nor, in a pipeline, with the secret in LBCTL_TOKEN:\n  export LBCTL_ENDPOINTS=%s LBCTL_CA=%s",
			answer.GetEndpoint(), answer.GetCaPin(), answer.GetEndpoint(), answer.GetCaPin())
	}
}

func (c *cli) tokenList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List credentials, those that have expired too",
		Long: `List credentials, those that have expired too. No secret is in it: nobody has them but who made them. LAST USE is what the
answering node knows.`,
		Example: `  lbctl token list -o wide`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, 0, func() (*lbdv1.ListTokensResponse, error) {
					return cl.auth.ListTokens(ctx, &lbdv1.ListTokensRequest{})
				})
				if err != nil {
					return err
				}
				c.printTokens(answer.GetTokens())
				return nil
			})
		}),
	}
}

func (c *cli) printTokens(tokens []*lbdv1.Token) {
	values := []*document.Value{}
	var names []string
	for _, t := range tokens {
		values = append(values, document.OfAnswer(t))
		names = append(names, t.GetId())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.wideRow([]string{"TOKEN", "ROLE", "OWNERS", "KIND", "EXPIRES", "LAST USE", "DESCRIPTION"}, "CREATED", "AUTHOR", "PUBLIC KEY")
		for _, t := range tokens {
			kind := "token"
			if t.GetPublicKey() != "" {
				kind = "certificate"
			}
			w.wideRow([]string{
				t.GetId(), roleWord(t.GetRole()), ownersWord(t.GetOwners()), kind, expiryCell(t, time.Now()), moment(t.GetLastUseTime()), t.GetDescription(),
			}, moment(t.GetCreateTime()), t.GetAuthor(), t.GetPublicKey())
		}
	}})
}

func expiryCell(t *lbdv1.Token, now time.Time) string {
	switch end := t.GetExpireTime(); {
	case end == nil:
		return "never"
	case !end.AsTime().After(now):
		return "expired " + moment(end)
	default:
		return moment(end)
	}
}

func (c *cli) tokenRevoke() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke TOKEN",
		Short: "End a credential at once",
		Long: `End a credential at once, and the calls under way with it. TOKEN is its id, as "token list" shows it: what is between the
underscores of lbt_<id>_<secret>. While local_admin is false, the last admin who is bound to no owner is not revoked (exit 6).`,
		Example: `  lbctl token revoke k3v9x2ab`,
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request := &lbdv1.RevokeTokenRequest{Id: args[0], RequestId: newRequestID()}
			if id, secret := tokenID(args[0]); id != "" {
				request.Id = id
				if secret != "" {
					fmt.Fprintln(c.stderr, "warning: the whole token was on the command line, where others on this machine may see it: its id is enough")
				}
			}
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RevokeTokenResponse, error) { return cl.auth.RevokeToken(ctx, request) })
				if vs := violations(err); len(vs) > 0 {
					return fail(exitUsage, "%s", vs[0].GetDescription())
				}
				if err != nil {
					return err
				}
				id := answer.GetToken().GetId()
				c.print(result{value: document.OfAnswer(answer), names: []string{id}, table: func(*table) {
					fmt.Fprintf(c.stdout, "token %s revoked\n", id)
				}})
				return nil
			})
		}),
	}
}
