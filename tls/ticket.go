package tlsterm

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"
)

// A ticket is what a client keeps of a session and brings back, sealed (RFC 5077; RFC 8446, section 4.6.1):
//
//	name of the key   16   all that it shows
//	salt              16   random: the ticket's own key is derived from the epoch's with it
//	sealed                 AES-256-GCM under that key, name and salt authenticated:
//	  format           1
//	  epoch            8   of the key
//	  node             8   that has issued it
//	  issued           8   Unix time in milliseconds
//	  client policy   32   digest of what the server name demanded of clients
//	  server name    1+n   as the client sent it
//	  listener       1+n
//	  session              crypto/tls's
//
// A key seals one ticket, so its nonce is zero. One AES-GCM key over all nodes would come near the limit of random nonces within a rotation.
type ticket struct {
	epoch, node  uint64
	issued       time.Time
	clientPolicy [sha256.Size]byte
	serverName   string
	listener     string
	session      []byte // crypto/tls's own encoding
}

const (
	ticketFormat    = 1
	ticketSaltBytes = 16
	ticketHeadBytes = TicketKeyNameBytes + ticketSaltBytes
	// ticketFixedBytes is what the contents have before the first string.
	ticketFixedBytes = 1 + 8 + 8 + 8 + sha256.Size
	// ticketInfo separates these keys from whatever else may be derived from an epoch's secret one day.
	ticketInfo = "lbd session ticket 1"
)

var (
	errTicketDamaged = errors.New("the ticket is damaged, or under another key of that name")
	errTicketFormat  = errors.New("the ticket has a format of another build")
)

// seal makes a ticket of what it says, under a key.
func (t *ticket) seal(key *TicketKey) ([]byte, error) {
	if len(t.serverName) > 255 || len(t.listener) > 255 {
		return nil, errors.New("a name is too long for a ticket")
	}
	size := ticketHeadBytes + ticketFixedBytes + 1 + len(t.serverName) + 1 + len(t.listener) + len(t.session)
	b := make([]byte, ticketHeadBytes, size+16) // and GCM's tag
	copy(b, key.Name[:])
	rand.Read(b[TicketKeyNameBytes:ticketHeadBytes]) // never fails
	aead, err := ticketCipher(key, b[TicketKeyNameBytes:ticketHeadBytes])
	if err != nil {
		return nil, err
	}
	b = append(b, ticketFormat)
	b = binary.BigEndian.AppendUint64(b, t.epoch)
	b = binary.BigEndian.AppendUint64(b, t.node)
	b = binary.BigEndian.AppendUint64(b, uint64(t.issued.UnixMilli()))
	b = append(b, t.clientPolicy[:]...)
	b = append(append(b, byte(len(t.serverName))), t.serverName...)
	b = append(append(b, byte(len(t.listener))), t.listener...)
	b = append(b, t.session...)
	return aead.Seal(b[:ticketHeadBytes], ticketNonce[:], b[ticketHeadBytes:], b[:ticketHeadBytes]), nil // in place
}

// ticketKeyName is the name of the key that a ticket shows; false: it is too short to be one.
func ticketKeyName(sealed []byte) (name [TicketKeyNameBytes]byte, ok bool) {
	if len(sealed) < ticketHeadBytes {
		return name, false
	}
	copy(name[:], sealed)
	return name, true
}

// openTicket opens one with the key of the name that it shows. It leaves sealed as it is. Errors: errTicketDamaged, errTicketFormat.
func openTicket(key *TicketKey, sealed []byte) (*ticket, error) {
	if len(sealed) < ticketHeadBytes {
		return nil, errTicketDamaged
	}
	head := sealed[:ticketHeadBytes]
	aead, err := ticketCipher(key, head[TicketKeyNameBytes:])
	if err != nil {
		return nil, err
	}
	b, err := aead.Open(nil, ticketNonce[:], sealed[ticketHeadBytes:], head)
	if err != nil {
		return nil, errTicketDamaged
	}
	return parseTicket(b)
}

// parseTicket reads the contents. They are authentic, so what does not fit was written by another build.
func parseTicket(b []byte) (*ticket, error) {
	if len(b) < ticketFixedBytes || b[0] != ticketFormat {
		return nil, errTicketFormat
	}
	t := &ticket{
		epoch: binary.BigEndian.Uint64(b[1:]), node: binary.BigEndian.Uint64(b[9:]),
		issued: time.UnixMilli(int64(binary.BigEndian.Uint64(b[17:]))),
	}
	copy(t.clientPolicy[:], b[25:])
	b = b[ticketFixedBytes:]
	for _, field := range []*string{&t.serverName, &t.listener} {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return nil, errTicketFormat
		}
		*field, b = string(b[1:1+b[0]]), b[1+int(b[0]):]
	}
	t.session = b
	return t, nil
}

var ticketNonce [12]byte

// ticketCipher derives a ticket's own key (RFC 5869).
func ticketCipher(key *TicketKey, salt []byte) (cipher.AEAD, error) {
	own, err := hkdf.Key(sha256.New, key.Secret[:], salt, ticketInfo, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
