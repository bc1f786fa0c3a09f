package farm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// However long nobody answers, one request for each controller and node is left.
func TestARequestIsLeftOnce(t *testing.T) {
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
	log, err := obs.NewLogger(io.Discard, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	epoch := schema.Value.Epoch
	id := pod.Identity{RCID: "gone", Role: "main"}
	res := node.Reservation{Claims: map[string]node.Claim{id.String(): node.NewClaim(id, nil, 100, 0)}}
	if _, err := client.Commit(t.Context(), []consul.Op{consul.Set(keys.Reservations.Key("n1"), mustEncode(t, res))}); err != nil {
		t.Fatal(err)
	}
	errDone := errors.New("done")
	session, end := context.WithCancelCause(t.Context())
	err = client.RunSession(session, consul.SessionConfig{Kind: "farm", Name: "f", TTL: 10 * time.Second}, func(ctx context.Context, s *consul.Session) error {
		cfg := Config{ID: "f", Store: st.FarmSession(s, "f"), Log: log, SweepEvery: time.Second, ResyncEvery: time.Minute, RCSelector: labels.Everything(), Metrics: NewMetrics(prometheus.NewRegistry())}
		c := &core{cfg: cfg, log: log, cache: newCache(&cfg, log, func(event) {}), kit: &kit{nodeSync: &nodeSync{epoch: epoch}}}
		c.cache.as.schema, c.cache.views = schema, map[string]*node.View{"n1": {Node: node.Node{Name: "n1", Epoch: epoch}, Alive: true}}
		l := leaks{core: c, as: st.Leader("f", client.Commit)}
		for i := range 5 { // it begins, suspects, and asks three times
			if err := l.look(ctx, time.Unix(1_700_000_000, 0).Add(time.Duration(i)*time.Minute)); err != nil {
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

func mustEncode(t *testing.T, record any) []byte {
	t.Helper()
	value, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
