package store

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// About 200 orphans fill a page.
func many(n int) []pod.Orphan {
	orphans := make([]pod.Orphan, n)
	for i := range orphans {
		orphans[i] = pod.Orphan{
			Identity: pod.Identity{
				RCID: "01jd0000000000000000000000", Role: "main",
				Index: i,
			}, PodID: strings.Repeat("x", 63),
			Digest: strings.Repeat("d",
				64), Revision: 1_700_000_000_000, Ports: map[string]int{"http": 8080}, Reason: pod.ReasonOrphaned,
		}
	}
	return orphans
}

// tell writes pages of orphans, and the node's record.
func tell(t *testing.T, session *NodeSession, epoch string, orphans []pod.Orphan) node.OrphanPages {
	t.Helper()
	said, err := session.WriteOrphans(t.Context(), epoch, orphans, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.AcquireNode(t.Context(), node.Node{Name: "n1", Epoch: epoch, OrphanPages: &said},
		false); err != nil {
		t.Fatal(err)
	}
	return said
}

// read also returns whether the pages match the record.
func read(t *testing.T, st *Store) (orphans []pod.Orphan, complete bool) {
	t.Helper()
	rec, complete, err := st.NodeOrphans(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	return rec.Value.Orphans, complete
}

// All orphans are listed when the record refers to the pages, and no page of a longer list is left.
func TestOrphansOnPages(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	for _, n := range []int{0, 1, 3000, 400, 1, 0, 700} {
		said := tell(t, session, "n0", many(n))
		got, complete := read(t, st)
		if !complete || fmt.Sprint(got) != fmt.Sprint(many(n)) || said.Orphans != n {
			t.Fatalf("%d of %d orphans are listed, whole: %v, the record says %+v", len(got), n, complete, said)
		}
		keys, err := st.c.Keys(t.Context(), st.keys.OrphanPages.Below("n1"))
		if err != nil || len(keys) != said.Count {
			t.Errorf("pages %v of %d orphans, %v; want %d", keys, n, err, said.Count)
		}
	}
}

// The gate must allow the field Runs of an orphan.
func TestOrphansHaveOnlyWhatTheGateAllows(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	orphans := many(2)
	orphans[1].Runs = true
	listed := func(want bool) {
		t.Helper()
		tell(t, session, "n0", orphans)
		if got, complete := read(t, st); !complete || len(got) != 2 || got[0].Runs || got[1].Runs != want {
			t.Errorf("%+v, whole: %t", got, complete)
		}
	}
	write(t, st, consul.Set(st.keys.Gate.Key(), []byte(`{"version":"0.1.0"}`)))
	listed(false)
	st.raise(t, feature.Known.Named("ordered").Since)
	tell(t, session, "n0", orphans) // the preparer reads the new gate
	listed(true)
	write(t, st, consul.Set(st.keys.Gate.Key(), []byte(`{"version":"0.1.0"}`)))
	if _, err := session.WriteOrphans(t.Context(), "n1", orphans, true); err == nil {
		t.Error("it is written although the gate went down")
	}
	listed(false)
	if !orphans[1].Runs {
		t.Error("what was given was changed")
	}
}

// Right pages are not written again, but vanished pages are.
func TestOrphansAreWrittenOnce(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	first := tell(t, session, "n0", many(400))
	for _, again := range []bool{false, true} {
		if said, err := session.WriteOrphans(t.Context(), "n0", many(400), again); err != nil || said != first {
			t.Errorf("again %v: %+v, %v; want %+v", again, said, err, first)
		}
	}
	if _, err := st.c.Commit(t.Context(),
		[]consul.Op{consul.Delete(st.keys.OrphanPages.Key("n1", strconv.Itoa(0)))}); err != nil {
		t.Fatal(err)
	}
	if _, complete := read(t, st); complete {
		t.Error("a list that lacks a page counts as whole")
	}
	said, err := session.WriteOrphans(t.Context(), "n0", many(400), true)
	if err != nil || said.Edition == first.Edition {
		t.Errorf("pages that vanished: %+v, %v", said, err)
	}
	if said := tell(t, session, "n1", many(400)); said.Edition == first.Edition {
		t.Error("another epoch, and the pages are the same")
	}
}

// If a preparer is killed between its pages and its record, the editions differ, and the next preparer writes all pages
// again.
func TestOrphansOfAKilledPreparer(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	tell(t, session, "n0", many(400))
	if _, err := session.WriteOrphans(t.Context(), "n1", many(500), false); err != nil {
		t.Fatal(err)
	}
	if _, complete := read(t, st); complete {
		t.Error("pages that the record does not speak of count as its list")
	}
	next := st.NodeSession(session.sess, "n1")
	tell(t, next, "n1", many(300))
	if got, complete := read(t, st); !complete || len(got) != 300 {
		t.Errorf("%d orphans, whole: %v", len(got), complete)
	}
}

// A late write of a page is refused, or no record refers to the page.
func TestLatePagesOfOrphans(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	late, err := pagesOf("n1", "n0", many(400))
	if err != nil {
		t.Fatal(err)
	}
	lingering := []consul.Op{
		consul.CheckSession(st.keys.Nodes.Key("n1"), session.sess.Releasing),
		consul.CAS(st.keys.OrphanPages.Key("n1", strconv.Itoa(0)), asJSON(late[0]), 0),
	}
	tell(t, session, "n1", many(500))
	if _, err := st.c.Commit(t.Context(), lingering); !errors.Is(err, ErrRefused) {
		t.Errorf("a late page was written: %v", err)
	}
	tell(t, session, "n1", nil)
	if _, err := st.c.Commit(t.Context(), lingering); err != nil { // it lands, but no record refers to the page
		t.Fatal(err)
	}
	if got, complete := read(t, st); !complete || len(got) != 0 {
		t.Errorf("%d orphans, whole: %v", len(got), complete)
	}
	if _, err := session.WriteOrphans(t.Context(), "n1", many(1), false); !errors.Is(err, ErrConflict) {
		t.Errorf("written over a page that is not known: %v", err)
	}
	tell(t, session, "n1", many(1))
	if got, complete := read(t, st); !complete || len(got) != 1 {
		t.Errorf("%d orphans, whole: %v", len(got), complete)
	}
}

// Pages need the node's lock.
func TestOrphansNeedTheLock(t *testing.T) {
	t.Parallel()
	_, session, lose := nodeSession(t)
	lose()
	if _, err := session.WriteOrphans(t.Context(), "n0", many(1), false); !errors.Is(err, ErrLost) {
		t.Errorf("without the lock: %v", err)
	}
}

// Preparers of earlier versions list orphans in the node's record.
func TestOrphansOfAnOlderPreparer(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	if err := session.AcquireNode(t.Context(), node.Node{Name: "n1", Epoch: "n0", Orphans: many(2)},
		false); err != nil {
		t.Fatal(err)
	}
	if got, complete := read(t, st); !complete || len(got) != 2 {
		t.Errorf("%d orphans, whole: %v", len(got), complete)
	}
}
