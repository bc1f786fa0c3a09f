package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// beside returns the store of another program, which emulates a version.
func (s *Store) beside(t *testing.T, emulates string) *Store {
	t.Helper()
	client, err := consul.New(consul.Config{Address: consultest.Shared(t).Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	other := New(client, s.keys)
	other.Emulate(emulates)
	return other
}

func (s *Store) raise(t *testing.T, to string) {
	t.Helper()
	rec, err := s.ReadGate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, s.raiseGate(rec, to, "f1")...)
}

func needs(version string) feature.Need {
	return feature.Need{Feature: feature.Feature{Name: "modes", Since: version}, Field: "spread"}
}

func TestGate(t *testing.T) {
	t.Parallel()
	st := empty(t).beside(t, "0.3.0")
	key := func(name string) string { return st.keys.Prefix() + name }
	if gate, err := st.ReadGate(t.Context()); err != nil || gate.Value.Version != feature.Oldest || gate.Index != 0 {
		t.Fatalf("%+v, %v", gate, err)
	}
	write(t, st, consul.Set(key("a"), nil).Needs(feature.Need{}))
	closed := func(version, gate string) {
		t.Helper()
		_, err := st.c.Commit(t.Context(),
			[]consul.Op{consul.Set(key("b"), nil), consul.Set(key("c"), nil).Needs(needs(version))})
		refused, is := errors.AsType[*feature.ClosedError](err)
		if !is || refused.Gate != gate || refused.Field != "spread" || errors.Is(err, ErrUnknown) ||
			errors.Is(err, ErrRefused) {
			t.Errorf("what needs %s under %s: %v", version, gate, err)
		}
		if there, err := st.exists(t.Context(), key("b")); there || err != nil {
			t.Errorf("a part of it was written: %v", err)
		}
	}
	closed("0.2.0", feature.Oldest)
	st.raise(t, "0.2.0")
	write(t, st, consul.Set(key("c"), nil).Needs(needs("0.2.0")))
	closed("0.3.0", "0.2.0")
	gate, err := st.ReadGate(t.Context())
	if err != nil || gate.Value.Version != "0.2.0" || gate.Value.By != "f1" || time.Since(gate.Value.At) > time.Minute {
		t.Errorf("%+v, %v", gate, err)
	}
	write(t, st, consul.CAS(st.keys.Gate.Key(), []byte("{"), gate.Index)) // damaged
	closed("0.2.0", feature.Oldest)
	st.raise(t, "0.3.0")
	write(t, st, consul.Set(key("c"), nil).Needs(needs("0.3.0")))
	audits, _, err := st.ListAudit(t.Context(), AuditFilter{})
	if err != nil || len(audits) != 2 || audits[0].What != "raise-gate" {
		t.Errorf("%+v, %v", audits, err)
	}
}

// If the gate is raised above a program's version, Consul refuses the program's next write, and the program finds out
// why. Newer programs continue to write. If the gate goes back, it forbids newer features again.
func TestGateMovesUnderWriters(t *testing.T) {
	t.Parallel()
	st := empty(t)
	older, newer := st.beside(t, "0.1.0"), st.beside(t, "0.2.0")
	key := st.keys.Prefix() + "a"
	for _, s := range []*Store{older, newer} {
		write(t, s, consul.Set(key, nil))
	}
	behind, cancel := context.WithCancel(t.Context())
	cancel()
	if err := older.UntilBehind(behind); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	before, err := newer.c.Get(t.Context(), key, consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	newer.raise(t, "0.2.0")
	for range 2 {
		_, err := older.c.Commit(t.Context(), []consul.Op{consul.CAS(key, []byte("old"), before.ModifyIndex)})
		if e, is := errors.AsType[*feature.BehindError](err); !is || e.Emulates != "0.1.0" || e.Gate != "0.2.0" ||
			errors.Is(err, ErrUnknown) {
			t.Errorf("%v", err)
		}
	}
	if _, is := errors.AsType[*feature.BehindError](older.UntilBehind(t.Context())); !is {
		t.Error("no alert")
	}
	write(t, newer, consul.CAS(key, []byte("new"), before.ModifyIndex).Needs(needs("0.2.0")))
	write(t, newer, consul.Delete(st.keys.Gate.Key()))
	_, err = newer.c.Commit(t.Context(), []consul.Op{consul.Set(key, nil).Needs(needs("0.2.0"))})
	if e, is := errors.AsType[*feature.ClosedError](err); !is || e.Gate != feature.Oldest {
		t.Errorf("%v", err)
	}
	write(t, older, consul.Set(key, nil))
}

func TestWriters(t *testing.T) {
	t.Parallel()
	st := empty(t)
	self, err := st.c.AgentNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) { write(t, st, consul.Set(key, []byte(value))) }
	put(st.keys.Farms.Key("f1"), `{"version":"0.2.0","emulation_version":"0.1.0"}`)
	put(st.keys.Farms.Key("f2"), `{`)
	free := func(name, agent string) {
		put(st.keys.Nodes.Key(name), fmt.Sprintf(`{"name":%q,"version":"0.1.0","consul_node":%q}`, name, agent))
	}
	failed := st.failedAgent(t)
	free("there", self)
	free("no-agent", "")
	for _, agent := range []string{failed, "no-such-agent"} {
		name := "left-"
		if agent == failed {
			name = "failed-"
		}
		free(name+"empty", agent)
		for _, kind := range []string{"claim", "placed", "ghost", "intent", "report"} {
			free(name+kind, agent)
		}
		id := pod.Identity{RCID: NewID(), Role: "main"}
		put(st.keys.Reservations.Key(name+"claim"), fmt.Sprintf(`{"holders":{%q:{}}}`, id.String()))
		put(st.keys.Pods.Key(id.String()),
			string(
				asJSON(pod.Placement{
					Identity: id, Node: name + "placed", PodID: "p", Digest: hexOf("x"), Revision: 1,
					RunState: pod.Running, Ghosts: []pod.Ghost{{Node: name + "ghost"}},
				})))
		put(st.keys.Intents.Key(name+"intent", id.String()), `{}`)
		put(st.keys.Realities.Key(name+"report", id.String()), `{"state":"running"}`)
	}
	put(st.keys.Nodes.Key("broken"), `{`)
	put(st.keys.Nodes.Key("newest"),
		fmt.Sprintf(`{"name":"newest","emulation_version":%q,"consul_node":"no-such-agent"}`, feature.Known.Newest()))
	living, err := st.Writers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range living {
		got = append(got, fmt.Sprint(w.Kind, " ", w.Name, " ", w.Version, " ", w.Emulates))
	}
	want := []string{"farm f1 0.2.0 0.1.0", "farm f2  ", "node broken  ", "node newest  " + feature.Known.Newest()}
	for _, name := range []string{"there", "no-agent"} {
		want = append(want, "node "+name+" 0.1.0 ")
	}
	for _, kind := range []string{"claim", "placed", "ghost", "intent", "report"} {
		want = append(want, "node failed-"+kind+" 0.1.0 ", "node left-"+kind+" 0.1.0 ")
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func (s *Store) failedAgent(t *testing.T) string {
	t.Helper()
	client, err := api.NewClient(&api.Config{Address: consultest.Shared(t).Addr})
	if err != nil {
		t.Fatal(err)
	}
	name := "failed-" + NewID()
	_, err = client.Catalog().Register(&api.CatalogRegistration{
		Node: name, Address: "127.0.0.9", Check: &api.AgentCheck{
			Node: name, CheckID: "serfHealth", Name: "serfHealth",
			Status: api.HealthCritical,
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Catalog().Deregister(&api.CatalogDeregistration{Node: name}, nil) })
	return name
}

// The error names the farms and nodes that hold the gate back, with the versions in their records.
func TestClosedErrorNamesTheWritersThatHoldTheGateBack(t *testing.T) {
	t.Parallel()
	st := empty(t)
	st.Emulate("0.1.0")
	st.underSession(t, "x", func(sess *consul.Session) {
		if err := st.FarmSession(sess, "f1").Join(t.Context(), Member{Version: "0.2.0"}); err != nil {
			t.Fatal(err)
		}
		if err := st.NodeSession(sess, "n1").AcquireNode(t.Context(), node.Node{Name: "n1", Version: "0.1.0"},
			false); err != nil {
			t.Fatal(err)
		}
		newer := st.beside(t, "0.2.0")
		_, err := newer.c.Commit(t.Context(), []consul.Op{consul.Set(st.keys.Prefix()+"a", nil).Needs(needs("0.2.0"))})
		if err == nil ||
			!strings.Contains(err.Error(), "held back by farm f1 (version 0.2.0, emulates 0.1.0), node n1 (version "+
				"0.1.0): upgrade that") {
			t.Error(err)
		}
	})
}

// A farm below the gate cannot write its member record, because the transaction that takes the lock depends on the
// gate. A lock's operation does not show which features its value needs, so such values must not have fields with
// features.
func TestMembersHoldTheGate(t *testing.T) {
	t.Parallel()
	st := empty(t)
	older := st.beside(t, "0.1.0")
	older.underSession(t, "f1", func(sess *consul.Session) {
		farm := older.FarmSession(sess, "f1")
		if err := farm.Join(t.Context(), Member{Version: "0.1.0"}); err != nil {
			t.Fatal(err)
		}
		member := func() consul.Pair {
			pair, err := st.c.Get(t.Context(), st.keys.Farms.Key("f1"), consul.Consistent)
			if err != nil {
				t.Fatal(err)
			}
			return pair
		}
		before := member()
		st.raise(t, "0.2.0")
		err := farm.Join(t.Context(), Member{Version: "0.1.0", Address: "elsewhere"})
		if _, is := errors.AsType[*feature.BehindError](err); !is || member().ModifyIndex != before.ModifyIndex {
			t.Errorf("it joins: %v", err)
		}
	})
	for _, of := range []reflect.Type{reflect.TypeFor[Member](), reflect.TypeFor[lockValue]()} {
		for f := range of.Fields() {
			if f.Tag.Get(feature.Tag) != "" || f.Type.Kind() != reflect.String {
				t.Errorf("%s.%s: Locks.Acquire asks nobody whether it may be written; leave it out in Join, as "+
					"AcquireNode does", of, f.Name)
			}
		}
	}
}

// If a token may only read the gate, the program reads it again after silentFor. Its transactions depend on a gate that
// exists.
func TestSilentGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(&db{keys: &Keys{}})
		g.known, g.read = true, time.Now()
		condition := func() (ok bool, err error) {
			_, ok, err = g.Condition(t.Context(), nil)
			return ok, err
		}
		if ok, err := condition(); !ok || err != nil {
			t.Errorf("depends on no gate: %t, %v", ok, err)
		}
		g.Refused(consul.Failure{What: "key is not missing"})
		if g.known || g.silent {
			t.Error("one who is refused for another reason need not be silent, and must read")
		}
		g.Refused(consul.Failure{What: "Permission denied: token lacks key:write"})
		g.known = true
		if ok, err := condition(); ok || err != nil || !g.silent {
			t.Errorf("depends on what it may not ask: %t, %v", ok, err)
		}
		<-time.After(silentFor - time.Millisecond)
		if !g.fresh() {
			t.Error("is read again at once")
		}
		<-time.After(time.Millisecond)
		if g.fresh() {
			t.Error("is never read again")
		}
		g.gate.Index = 7
		if ok, err := condition(); !ok || err != nil {
			t.Errorf("does not depend on a gate that is there: %t, %v", ok, err)
		}
		g.silent, g.known = false, true
		g.Refused(consul.Failure{What: "Permission denied"})
		if g.silent {
			t.Error("who may not read the gate that is there is no silent one")
		}
	})
}

// A cluster's first writer makes the gate with the version that it emulates, or, for example after a wipe, with an
// earlier version of living daemons.
func TestFirstGate(t *testing.T) {
	t.Parallel()
	first := func(st *Store) string {
		t.Helper()
		if _, err := st.EnsureSchema(t.Context()); err != nil {
			t.Fatal(err)
		}
		gate, err := st.ReadGate(t.Context())
		if err != nil || gate.Index == 0 {
			t.Fatalf("%+v, %v", gate, err)
		}
		return gate.Value.Version
	}
	if got := first(empty(t).beside(t, "0.3.0")); got != "0.3.0" {
		t.Errorf("where nobody lives it is %s", got)
	}
	st := empty(t)
	older, newer := st.beside(t, "0.2.0"), st.beside(t, "0.3.0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	role := func(ctx context.Context, _ *consul.Session) error {
		consultest.Eventually(t, time.Minute, func() error { // wait until the check passes
			metas, err := newer.c.Catalog.Passing(ctx, consul.ServiceName("farm"), prefixMeta, st.keys.Prefix())
			if err == nil && len(metas) == 0 {
				err = errors.New("not there")
			}
			return err
		})
		if got := first(newer); got != "0.2.0" {
			t.Errorf("beside an older one it is %s", got)
		}
		cancel()
		return context.Cause(ctx)
	}
	session := consul.SessionConfig{
		Kind: "farm", Name: "f1", TTL: time.Minute, Journal: noJournal{},
		Meta: older.FarmMeta(),
	}
	if err := st.c.RunSession(ctx, session, role); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if meta := older.PreparerMeta("n1")[emulatesMeta]; meta != "0.2.0" {
		t.Errorf("a preparer says %q", meta)
	}
}

// If an operator with a newer program makes the first records, the gate is the oldest version, so that its daemons can
// write. The leader then raises it at once to the version that all daemons emulate, unless it was changed meanwhile.
func TestAnOperatorMakesTheOldestGate(t *testing.T) {
	t.Parallel()
	st := empty(t).beside(t, "9.0.0")
	if _, err := st.Operator.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	older := st.beside(t, "0.2.0")
	write(t, older, consul.Set(st.keys.Farms.Key("f1"), []byte(`{"id":"f1","emulation_version":"0.2.0"}`)))
	gate, err := older.ReadGate(t.Context())
	if err != nil || gate.Index == 0 || gate.Value.Version != feature.Oldest {
		t.Fatalf("%+v, %v", gate, err)
	}
	leader := older.Leader("f1", older.c.Commit)
	first := func(want string) {
		t.Helper()
		gate, err := leader.ReadGate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if to, err := leader.FirstRaise(t.Context(), gate); err != nil || to != want {
			t.Errorf("it may be raised to %q, want %q: %v", to, want, err)
		}
	}
	first("0.2.0")
	write(t, older, consul.Set(st.keys.Nodes.Key("n1"), []byte(`{"name":"n1"}`)))
	first("") // the node's program is older than the gate
	write(t, older, consul.Delete(st.keys.Nodes.Key("n1")))
	write(t, older, older.raiseGate(gate, "0.1.0", "f1")...)
	first("")
}

// A farm reports the nodes to which it could not push if the gate allows it, and else only that it lives.
func TestUntoldNodesWaitForTheGate(t *testing.T) {
	t.Parallel()
	st := empty(t)
	owning(t, st, "a", func(ctx context.Context, farm *FarmSession, _ Fence) {
		if err := farm.Join(ctx, Member{}); err != nil {
			t.Fatal(err)
		}
		said := func() *Untold {
			t.Helper()
			if err := st.FarmHeard(ctx, farm.sess, "f1", time.Second,
				Untold{Count: 1, Nodes: []UntoldNode{{Node: "n1"}}}, true); err != nil {
				t.Fatal(err)
			}
			farms, _, err := st.HeardOf(ctx)
			if err != nil || farms["f1"].EverySeconds != 1 {
				t.Fatalf("%+v, %v", farms, err)
			}
			return farms["f1"].Untold
		}
		if u := said(); u != nil {
			t.Errorf("without a gate it says %+v", u)
		}
		st.raise(t, feature.Known.Named("push").Since)
		_ = said() // Consul refuses the write because the gate has changed, and the farm reads the gate again
		if u := said(); u == nil || u.Count != 1 {
			t.Errorf("it says %+v", u)
		}
	})
}

// A farm ignores fields that the gate forbids: if it acted on them, it could not write the result, and would act again
// and again.
func TestReportsHaveOnlyWhatTheGateAllows(t *testing.T) {
	t.Parallel()
	st := empty(t).FarmSession(&consul.Session{}, "f1")
	w := reports(1)[0]
	w.Reality.State, w.Reality.Available, w.Reality.Hopeless, w.Reality.NeverAvailable = pod.StateFailed, false, true,
		true
	at := At{Identity: w.Reality.Identity, Node: "n1"}
	read := func(gate string) pod.Reality {
		t.Helper()
		if _, err := st.c.Commit(t.Context(),
			[]consul.Op{consul.Set(st.keys.Gate.Key(), asJSON(newGate(gate)))}); err != nil {
			t.Fatal(err)
		}
		st.guard.forget()
		if _, _, err := st.guard.present(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := st.c.Commit(t.Context(),
			[]consul.Op{consul.Set(st.keys.Realities.At(at), asJSON(w.Reality))}); err != nil {
			t.Fatal(err)
		}
		d, err := st.ReadDetails(t.Context(), Wanted{Realities: []At{at}}, Consistent)
		if err != nil || d.Reports[at].Reality == nil {
			t.Fatal(d.Reports, err)
		}
		return *d.Reports[at].Reality
	}
	if r := read("0.1.0"); r.NeverAvailable || !r.Hopeless {
		t.Errorf("under an older gate: %+v", r)
	}
	if r := read(feature.Known.Named("second-node").Since); !r.NeverAvailable || !r.Hopeless {
		t.Errorf("under a gate that allows it: %+v", r)
	}
}
