package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// While a request has no answer, no second request is written for the same controller and node.
func TestARequestIsWrittenOnce(t *testing.T) {
	t.Parallel()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	st := store.New(client, keys)
	schema, err := st.EnsureSchema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	epoch := schema.Value.Epoch
	id := pod.Identity{RCID: "gone", Role: "main"}
	res := node.Reservation{Claims: map[string]node.Claim{id.String(): node.NewClaim(id, nil, 100, 0)}}
	value, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Commit(t.Context(), []consul.Op{consul.Set(keys.Reservations.Key("n1"), value)}); err != nil {
		t.Fatal(err)
	}
	errDone := errors.New("done")
	session, end := context.WithCancelCause(t.Context())
	cfg := consul.SessionConfig{Kind: "farm", Name: "f", TTL: 10 * time.Second}
	err = client.RunSession(session, cfg, func(ctx context.Context, s *consul.Session) error {
		nodes := map[string]*node.View{"n1": {Node: node.Node{Name: "n1", Epoch: epoch}, Alive: true}}
		l := NewLeaks(LeakConfig{
			Farm: "f", Reads: st.FarmSession(s, "f"), Asker: st.Leader("f", client.Commit),
			Every: time.Second, Round: time.Minute, Log: obs.Discard(),
			Nodes: func() (map[string]*node.View, string, bool) { return nodes, epoch, true },
		})
		for i := range 5 { // it starts, suspects, and asks three times
			if err := l.Look(ctx, time.Unix(1_700_000_000, 0).Add(time.Duration(i)*time.Minute)); err != nil {
				t.Error(err)
			}
		}
		if len(l.asked) != 1 {
			t.Errorf("asked: %v", l.asked)
		}
		end(errDone)
		return errDone
	})
	if !errors.Is(err, errDone) {
		t.Fatal(err)
	}
	left, err := client.Keys(t.Context(), keys.Requests.Below("gone"))
	if err != nil || len(left) != 1 {
		t.Errorf("requests %v, %v; want one", left, err)
	}
	if lines, _, err := st.ListAudit(t.Context(), store.AuditFilter{Node: "n1"}); err != nil || len(lines) != 1 {
		t.Errorf("audit %+v, %v; want one line", lines, err)
	}
}
