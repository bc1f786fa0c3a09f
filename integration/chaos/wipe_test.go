package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

var errAway = errors.New("the servers are away")

// flawed fails the n-th write before it is sent, or after it has landed.
type flawed struct {
	records
	writes atomic.Int32
	rule   func(n int) (before, after error)
}

func (f *flawed) Commit(ctx context.Context, ops []consul.Op) (map[string]uint64, error) {
	before, after := f.rule(int(f.writes.Add(1)))
	if before != nil {
		return nil, before
	}
	indices, err := f.records.Commit(ctx, ops)
	return indices, errors.Join(after, err)
}

func exported(t *testing.T, in records, prefix string) (schema string, export []consul.Pair) {
	t.Helper()
	schema = prefix + "schema"
	for i := range 5 {
		export = append(export, consul.Pair{Key: fmt.Sprintf("%srcs/%d", prefix, i), Value: fmt.Append(nil, i)})
	}
	for _, p := range append([]consul.Pair{{Key: schema}, {Key: prefix + "pods/x"}}, export...) {
		if _, err := in.Commit(t.Context(), []consul.Op{consul.Set(p.Key, p.Value)}); err != nil {
			t.Fatal(err)
		}
	}
	return schema, export
}

func below(t *testing.T, in records, prefix string) (keys []string) {
	t.Helper()
	pairs, err := in.List(t.Context(), prefix, consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs {
		keys = append(keys, p.Key+"="+string(p.Value))
	}
	return keys
}

// Even if writes fail, a wipe writes back each record once. It calls help only after a long time.
func TestAWipeWritesTheRecordsBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rule func(n int) (before, after error)
		help bool
	}{
		"nothing fails":            {func(int) (error, error) { return nil, nil }, false},
		"each write fails once":    {func(n int) (error, error) { return failing(n%2 == 1), nil }, false},
		"each lands and says no":   {func(int) (error, error) { return nil, errAway }, false},
		"the first lands, unheard": {func(n int) (error, error) { return nil, failing(n == 1) }, false},
		"it takes help":            {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, prefix := consultest.Client(t)
			schema, export := exported(t, client, prefix)
			var helped atomic.Bool
			through := &flawed{records: client, rule: tt.rule}
			if tt.help {
				through.rule = func(int) (error, error) { return failing(!helped.Load()), nil }
			}
			help := func(context.Context) error { helped.Store(true); return errors.New("whatever it says") }
			patience := time.Minute
			if tt.help {
				patience = 50 * time.Millisecond
			}
			if err := insist(t.Context(), patience,
				func(ctx context.Context) error { return deleteOnce(ctx, prefix, schema, export, through) },
				help); err != nil {
				t.Fatal(err)
			}
			if left := below(t, client, prefix); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
			helped.Store(false)
			for _, p := range export {
				if err := insist(t.Context(), patience,
					func(ctx context.Context) error { return putBack(ctx, p, through) }, help); err != nil {
					t.Fatal(err)
				}
			}
			var want []string
			for _, p := range export {
				want = append(want, p.Key+"="+string(p.Value))
			}
			if got := below(t, client, prefix); !slices.Equal(got, want) {
				t.Errorf("%q are back, want %q", got, want)
			}
			if helped.Load() != tt.help {
				t.Errorf("helped: %t, want %t", helped.Load(), tt.help)
			}
		})
	}
}

func failing(fails bool) error {
	if fails {
		return errAway
	}
	return nil
}

// A request of an earlier try that arrives after the records were written back deletes and overwrites nothing.
func TestAWipeThatArrivesLate(t *testing.T) {
	t.Parallel()
	client, prefix := consultest.Client(t)
	schema, export := exported(t, client, prefix)
	var late []consul.Op
	caught := &catching{records: client, ops: &late}
	if err := deleteOnce(t.Context(), prefix, schema, export, caught); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	if err := deleteOnce(t.Context(), prefix, schema, export, client); err != nil {
		t.Fatal(err)
	}
	for _, p := range append([]consul.Pair{{Key: schema}}, export...) { // farms make the schema again
		if _, err := client.Commit(t.Context(), []consul.Op{consul.CAS(p.Key, []byte("later"), 0)}); err != nil {
			t.Fatal(err)
		}
	}
	before := below(t, client, prefix)
	if _, err := client.Commit(t.Context(), late); !errors.Is(err, consul.ErrRefused) {
		t.Errorf("the late deletion: %v", err)
	}
	for _, p := range export {
		if err := putBack(t.Context(), p, client); err != nil {
			t.Fatal(err)
		}
	}
	if after := below(t, client, prefix); !slices.Equal(before, after) || len(after) != 6 {
		t.Errorf("%q became %q", before, after)
	}
}

// catching keeps writes and does not send them.
type catching struct {
	records
	ops *[]consul.Op
}

func (c *catching) Commit(_ context.Context, ops []consul.Op) (map[string]uint64, error) {
	*c.ops = ops
	return nil, errAway
}

func TestAWipeGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	helped := 0
	err := insist(ctx, time.Millisecond, func(context.Context) error { return errAway }, func(context.Context) error {
		if helped++; helped == 3 {
			cancel(errors.New("enough"))
		}
		return nil
	})
	if !errors.Is(err, errAway) || context.Cause(ctx).Error() != "enough" || helped != 3 {
		t.Errorf("%v after %d times", err, helped)
	}
}
