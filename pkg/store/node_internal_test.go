package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// noJournal is of daemons that are not started again.
type noJournal struct{}

func (noJournal) Incarnations() ([]string, error) { return nil, nil }
func (noJournal) Add(string) error                { return nil }
func (noJournal) Remove(string) error             { return nil }

// holder returns the writer of a node whose lock it holds, and what takes the lock away.
func holder(t *testing.T) (st *Store, tenure *NodeTenure, lose func()) {
	t.Helper()
	st = empty(t)
	ctx, cancel := context.WithCancel(t.Context())
	held, ended := make(chan *NodeTenure), make(chan error)
	go func() {
		ended <- st.c.RunSession(ctx, consul.SessionConfig{Kind: "preparer", Name: "n1", TTL: time.Minute, Journal: noJournal{}},
			func(ctx context.Context, sess *consul.Session) error {
				tenure := st.NodeTenure(sess, "n1")
				if err := tenure.Hold(ctx, node.Node{Name: "n1"}, false); err != nil {
					return err
				}
				held <- tenure
				<-ctx.Done()
				return context.Cause(ctx)
			})
	}()
	lose = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(lose)
	return st, <-held, lose
}

func reports(n int) []RealityWrite {
	var writes []RealityWrite
	for i := range n {
		id := pod.Identity{RCID: fmt.Sprintf("rc-%d", i%3), Role: "main", Index: i}
		writes = append(writes, RealityWrite{Reality: pod.Reality{Identity: id, Node: "n1", State: pod.StateRunning, Since: time.Now().UTC()}})
	}
	return writes
}

// As many as are allowed are one transaction, with each controller's bell.
func TestWriteRealities(t *testing.T) {
	t.Parallel()
	st, tenure, _ := holder(t)
	writes := reports(MaxRealities)
	for i := range writes { // each of another controller: no transaction of so many is longer
		writes[i].Reality.RCID = fmt.Sprintf("rc-%d", i)
	}
	index, err := tenure.WriteRealities(t.Context(), writes...)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range writes {
		rec, err := tenure.Reality(t.Context(), w.Reality.Identity)
		if err != nil || rec.Index != index || rec.Value.State != pod.StateRunning {
			t.Errorf("%s: %+v, %v; want it at index %d", w.Reality.Identity, rec, err, index)
		}
		if bell, err := st.c.Get(t.Context(), st.keys.Bell(w.Reality.RCID), consul.Consistent); err != nil || bell.ModifyIndex != index {
			t.Errorf("the bell of %s: %+v, %v; want it rung in the same transaction", w.Reality.RCID, bell, err)
		}
	}
}

// All or none: who is refused one has written none.
func TestWriteRealitiesTogetherOrNot(t *testing.T) {
	t.Parallel()
	_, tenure, lose := holder(t)
	writes := reports(5)
	if _, err := tenure.WriteRealities(t.Context(), writes[2]); err != nil {
		t.Fatal(err)
	}
	if _, err := tenure.WriteRealities(t.Context(), writes...); !errors.Is(err, ErrConflict) {
		t.Errorf("one of them exists already: %v", err)
	}
	if recs, _, err := tenure.ListRealities(t.Context()); err != nil || len(recs) != 1 {
		t.Errorf("%d realities, %v; want the first alone", len(recs), err)
	}
	lose()
	if _, err := tenure.WriteRealities(t.Context(), writes[:2]...); !errors.Is(err, ErrLost) {
		t.Errorf("without the lock: %v", err)
	}
}
