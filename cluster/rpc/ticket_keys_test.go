package rpc

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

func TestTicketKeysByCall(t *testing.T) {
	r := newRig(t)
	tickets := lbdv1.NewSessionTicketServiceClient(r.conn)
	rotate := func(emergency bool, request string) int64 {
		t.Helper()
		answer, err := tickets.RotateTicketKeys(r.ctx(), &lbdv1.RotateTicketKeysRequest{Emergency: emergency, RequestId: request})
		if err != nil || len(answer.GetUnreached()) > 0 {
			t.Fatal(answer, err)
		}
		return answer.GetEpoch()
	}
	if epoch := rotate(false, "r1"); epoch != 1 { // there were none
		t.Errorf("the first epoch is %d", epoch)
	}
	if epoch := rotate(false, "r2"); epoch != 2 {
		t.Errorf("after a rotation epoch %d issues", epoch)
	}
	if epoch := rotate(false, "r2"); epoch != 2 {
		t.Errorf("a retry has made it epoch %d", epoch)
	}
	if epoch := rotate(true, "r3"); epoch != 4 {
		t.Errorf("after an emergency epoch %d issues", epoch)
	}
	answer, err := tickets.GetStatus(r.ctx(), &lbdv1.SessionTicketServiceGetStatusRequest{Node: everyNode})
	if err != nil || len(answer.GetKeys()) != 2 || answer.GetKeys()[0].GetEpoch() != 5 || len(answer.GetNodes()) != 1 {
		t.Fatal(answer, err)
	}
	if n := answer.GetNodes()[0]; n.GetNode() != "n1" || !n.GetInSync() || n.GetEpoch() != 4 || answer.GetResults()["hit_peer"] != 2 {
		t.Errorf("status %v", answer)
	}
}

func TestTicketKeysFromOutside(t *testing.T) {
	r := newRig(t)
	tickets := lbdv1.NewSessionTicketServiceClient(r.conn)
	secret := append([]byte("name of 16 bytes"), bytes.Repeat([]byte("secret of nginx "), 2)...)
	for what, req := range map[string]*lbdv1.ImportTicketKeysRequest{
		"none": {}, "of another length": {Keys: [][]byte{secret[:40]}},
		"for too long": {Keys: [][]byte{secret}, AcceptFor: durationpb.New(31 * 24 * time.Hour)},
	} {
		if _, err := tickets.ImportTicketKeys(r.ctx(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 2 { // again moves their end
		answer, err := tickets.ImportTicketKeys(r.ctx(), &lbdv1.ImportTicketKeysRequest{Keys: [][]byte{secret}, AcceptFor: durationpb.New(time.Hour)})
		if err != nil || len(answer.GetKeys()) != 1 || answer.GetKeys()[0].GetState() != lbdv1.TicketKeyState_TICKET_KEY_STATE_IMPORTED {
			t.Fatal(answer, err)
		}
		if until := answer.GetKeys()[0].GetExpireTime().AsTime(); !until.Equal(now.Add(time.Hour)) {
			t.Errorf("accepted until %s", until)
		}
		if strings.Contains(answer.String(), hex.EncodeToString(secret[16:32])) {
			t.Error("the answer has the secret")
		}
	}
}
