package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
)

func pool(value string) map[string]string { return map[string]string{"pool": value} }

func (v *Views) reservation(t *testing.T, name string) Rec[node.Reservation] {
	t.Helper()
	found, unreadable, err := v.ReservationsOf(t.Context(), []string{name})
	if err != nil || len(unreadable) > 0 {
		t.Fatal(err, unreadable)
	}
	return found[name]
}

// A preparer with other labels than before writes their version into its node's reservation, and changes nothing else
// in it.
func TestAcquiringWritesLabelVersions(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	acquire := func(labels map[string]string) Rec[node.Reservation] {
		t.Helper()
		if err := session.AcquireNode(t.Context(), node.Node{Name: "n1", Labels: labels}, false); err != nil {
			t.Fatal(err)
		}
		rec, err := st.Nodes.Get(t.Context(), Consistent, "n1")
		if err != nil || !maps.Equal(rec.Value.Labels, labels) {
			t.Fatalf("record %+v, %v", rec, err)
		}
		return st.reservation(t, "n1")
	}
	if res := acquire(nil); res.Index != 0 {
		t.Errorf("reservation %+v of a node whose labels did not change", res)
	}
	if res := acquire(pool("a")); res.Value.Labels != (node.LabelVersions{Own: node.LabelVersion(pool("a"))}) {
		t.Errorf("the first reservation is %+v", res)
	}
	full := node.Reservation{
		Ineligible: true, Labels: node.LabelVersions{Own: "old", Operators: "theirs"},
		Claims: map[string]node.Claim{"web/main.0": {CPU: 5}},
	}
	if _, err := st.c.Commit(t.Context(),
		[]consul.Op{consul.Set(st.keys.Reservations.Key("n1"), asJSON(full))}); err != nil {
		t.Fatal(err)
	}
	same := acquire(pool("a"))
	if same.Value.Labels != full.Labels {
		t.Errorf("reservation %+v; the labels are those of before", same)
	}
	after := acquire(pool("b"))
	full.Labels.Own = node.LabelVersion(pool("b"))
	if string(asJSON(after.Value)) != string(asJSON(full)) || after.Index == same.Index {
		t.Errorf("reservation %+v, want %+v", after, full)
	}
	if _, err := st.c.Commit(t.Context(),
		[]consul.Op{consul.Set(st.keys.Reservations.Key("n1"), []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	if err := session.AcquireNode(t.Context(), node.Node{Name: "n1", Labels: pool("c")}, false); err != nil {
		t.Errorf("with a reservation that cannot be read: %v", err)
	}
}

func (s *db) underSession(t *testing.T, name string, do func(*consul.Session)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	session := consul.SessionConfig{Kind: "preparer", Name: name, TTL: time.Minute, Journal: noJournal{}}
	err := s.c.RunSession(ctx, session, func(ctx context.Context, sess *consul.Session) error {
		do(sess)
		cancel()
		return context.Cause(ctx)
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// Only a preparer that holds the node's lock can write a label version into the reservation.
func TestANodeWithoutItsLockWritesNoLabelVersion(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	if err := session.AcquireNode(t.Context(), node.Node{Name: "n1", Labels: pool("a")}, false); err != nil {
		t.Fatal(err)
	}
	before := st.reservation(t, "n1")
	st.underSession(t, "other", func(sess *consul.Session) {
		err := st.NodeSession(sess, "n1").AcquireNode(t.Context(), node.Node{Name: "n1", Labels: pool("b")}, false)
		if _, locked := LockedBy(err); !locked {
			t.Errorf("held by somebody else: %v", err)
		}
	})
	if after := st.reservation(t, "n1"); after.Index != before.Index {
		t.Errorf("reservation %+v, was %+v", after, before)
	}
}

// A preparer can take its node's lock without a right on the reservation. Farms then mend the label version.
func TestAcquiringWithoutTheRightToWriteLabelVersions(t *testing.T) {
	t.Parallel()
	const management = "0b7f0c1e-58f2-4b8e-9a3d-4f1d6a1f2c77"
	server, err := consultest.Start(fmt.Sprintf(`{"acl": {"enabled": true, "default_policy": "deny",
		"tokens": {"initial_management": %q, "agent": %q}}}`, management, management))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	keys, err := NewKeys("p/")
	if err != nil {
		t.Fatal(err)
	}
	connect := func(token string) *Store {
		client, err := consul.New(consul.Config{Address: server.Addr, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return New(client, keys)
	}
	admin := connect(management)
	var rights []string
	for _, right := range []string{"", "read", "write"} {
		t.Run("may "+right, func(t *testing.T) {
			name := "n" + right
			rules := fmt.Sprintf(`key %q { policy = "write" } session_prefix "" { policy = "write" } service_prefix "" { policy = "write" }
				agent_prefix "" { policy = "read" } node_prefix "" { policy = "read" } key %q { policy = "read" }`, keys.Nodes.Key(name), keys.Gate.Key())
			if right != "" {
				rules += fmt.Sprintf(` key %q { policy = %q }`, keys.Reservations.Key(name), right)
			}
			st := connect(aclToken(t, server.Addr, management, name, rules))
			st.underSession(t, name, func(sess *consul.Session) {
				for _, labels := range []string{"a", "b"} {
					if err := st.NodeSession(sess, name).AcquireNode(t.Context(),
						node.Node{Name: name, Labels: pool(labels)}, false); err != nil {
						t.Error(err)
					}
				}
			})
			if rec, err := admin.Nodes.Get(t.Context(), Consistent, name); err != nil ||
				rec.Value.Labels["pool"] != "b" {
				t.Errorf("record %+v, %v", rec, err)
			}
			res := admin.reservation(t, name)
			if (res.Value.Labels.Own == node.LabelVersion(pool("b"))) != (right == "write") {
				t.Errorf("reservation %+v", res)
			}
			rights = append(rights, right)
		})
	}
	if want := []string{"", "read", "write"}; !slices.Equal(rights, want) {
		t.Errorf("rights %q, want %q", rights, want)
	}
}

func aclToken(t *testing.T, addr, management, name, rules string) string {
	t.Helper()
	var made struct{ ID, SecretID string }
	put := func(path string, body any) {
		t.Helper()
		consultest.Eventually(t, time.Minute, func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+addr+path,
				strings.NewReader(string(asJSON(body))))
			if err != nil {
				return err
			}
			req.Header.Set("X-Consul-Token", management)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return errors.New(resp.Status)
			}
			return json.NewDecoder(resp.Body).Decode(&made)
		})
	}
	put("/v1/acl/policy", map[string]string{"Name": name, "Rules": rules})
	put("/v1/acl/token", map[string]any{"Policies": []map[string]string{{"ID": made.ID}}})
	return made.SecretID
}

// A reservation repeats two facts of other records: whether the node is drained, and the label versions. If both are
// right, MendReservation writes nothing.
func TestMendReservation(t *testing.T) {
	t.Parallel()
	farm := sessions(t, 1)[0]
	put := func(key string, value any) {
		t.Helper()
		if _, err := farm.c.Commit(t.Context(), []consul.Op{consul.Set(key, asJSON(value))}); err != nil {
			t.Fatal(err)
		}
	}
	own, theirs := node.LabelVersion(pool("a")), node.LabelVersion(pool("b"))
	both := node.LabelVersions{Own: own, Operators: theirs}
	claims := map[string]node.Claim{"web/main.0": {}}
	for name, tt := range map[string]struct {
		before *node.Reservation
		drain  *node.Drain
		mended bool
		lines  int
		after  node.Reservation
	}{
		"in line":          {before: &node.Reservation{Labels: both}, after: node.Reservation{Labels: both}},
		"without versions": {before: &node.Reservation{Claims: claims}, after: node.Reservation{Claims: claims}},
		"no reservation":   {},
		"lost, and drained": {
			drain: &node.Drain{}, mended: true, lines: 1,
			after: node.Reservation{Ineligible: true, Labels: both},
		},
		"others' labels": {
			before: &node.Reservation{Labels: node.LabelVersions{Operators: "x"}, Claims: claims},
			mended: true, lines: 1, after: node.Reservation{Labels: both, Claims: claims},
		},
		"other own labels": {
			before: &node.Reservation{Labels: node.LabelVersions{Own: "x", Operators: theirs}},
			mended: true, lines: 1, after: node.Reservation{Labels: both},
		},
		"closed without reason": {
			before: &node.Reservation{Ineligible: true, Labels: node.LabelVersions{Own: "x"}},
			mended: true, lines: 2, after: node.Reservation{Labels: both},
		},
	} {
		id := "n-" + strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")
		id = strings.ReplaceAll(id, "'", "")
		put(farm.keys.Nodes.Key(id), node.Node{Name: id, Labels: pool("a")})
		put(farm.keys.NodeOps.Key(id), node.Ops{Name: id, Labels: pool("b"), Drain: tt.drain})
		if tt.before != nil {
			put(farm.keys.Reservations.Key(id), tt.before)
		}
		index := farm.reservation(t, id).Index
		mended, err := farm.MendReservation(t.Context(), id)
		got := farm.reservation(t, id)
		if err != nil || mended != tt.mended || mended == (got.Index == index) {
			t.Errorf("%s: mended %t, %v; index %d, then %d", name, mended, err, index, got.Index)
		}
		if got.Value.Ineligible != tt.after.Ineligible || got.Value.Labels != tt.after.Labels ||
			len(got.Value.Claims) != len(tt.after.Claims) {
			t.Errorf("%s: %+v, want %+v", name, got.Value, tt.after)
		}
		audit, _, err := farm.ListAudit(t.Context(), AuditFilter{Node: id})
		if err != nil || (len(audit) == 1) != tt.mended || tt.mended && len(audit[0].Changes) != tt.lines {
			t.Errorf("%s: audit %+v, %v", name, audit, err)
		}
	}
}
