package rcctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func goodSpec(t *testing.T) *rc.Spec {
	t.Helper()
	data, err := document.ToJSON([]byte(goodDocument), inspect.SpecAllowed)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := rc.DecodeSpec(data)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func create(t *testing.T, s *conn) rc.RC {
	t.Helper()
	c, err := writeApply(t.Context(), s, applyRequest{spec: goodSpec(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c.rc
}

// If somebody else changes the record meanwhile, a change is computed again from the new record, so neither change is
// lost.
func TestWriteComputesAgain(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	tries := 0
	c, err := s.changeRC(t.Context(), r.ID, func(_ context.Context, r *rc.RC) (change, error) {
		if tries++; tries == 1 {
			spec := goodSpec(t)
			spec.NodeSelector = "rack=z"
			if _, err := writeApply(t.Context(), s, applyRequest{spec: spec}); err != nil {
				t.Fatal(err)
			}
		}
		return computeScale(current{rc: r}, "", 7, false)
	})
	if err != nil {
		t.Fatal(err)
	}
	if tries != 2 || c.rc.Generation != 3 || c.rc.NodeSelector != "rack=z" || c.rc.Desired() != 7 {
		t.Errorf("%d tries, %+v", tries, c.rc)
	}
}

// If somebody else changes the record all the time, a command gives up after a bounded number of tries, and writes
// nothing.
func TestWriteGivesUp(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	tries := 0
	_, err := s.changeRC(t.Context(), r.ID, func(_ context.Context, r *rc.RC) (change, error) {
		tries++
		other, err := s.RCs.Get(t.Context(), store.Consistent, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		c, err := computeScale(current{rc: &other.Value}, "", 100+tries, false)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Operator.ChangeRC(t.Context(),
			store.RCChange{RC: c.rc, Index: other.Index, Audit: store.NewAudit("other", "scale", r.ID, c.lines)})
		if err != nil {
			t.Fatal(err)
		}
		return computeScale(current{rc: r}, "", 7, false)
	})
	if !errors.Is(err, store.ErrConflict) || tries != maxTries ||
		!strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("%d tries: %v", tries, err)
	}
	var out, errs bytes.Buffer
	if code := (&stdio{out: &out, err: &errs}).report(err); code != exitRefused {
		t.Errorf("exit code %d", code)
	}
}

// Many concurrent creations of the same name make one controller, and all return its id.
func TestApplyAtOnce(t *testing.T) {
	s, prefix := testConn(t)
	const many = 8
	ids := make([]string, many)
	errs := make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			own := conn{Store: s.Store, consul: s.consul} // each command has its own conn
			var c change
			c, errs[i] = writeApply(t.Context(), &own, applyRequest{spec: goodSpec(t)})
			ids[i] = c.rc.ID
		})
	}
	wg.Wait()
	for i := range many {
		if errs[i] != nil || ids[i] != ids[0] {
			t.Errorf("%d: id %s, want %s, %v", i, ids[i], ids[0], errs[i])
		}
	}
	rec, err := s.FindRC(t.Context(), "web")
	if err != nil || rec.Value.Generation != 1 {
		t.Errorf("%+v, %v", rec.Value, err)
	}
	if keys := keysBelow(t, s.consul, prefix+"rcs/"); len(keys) != 1 {
		t.Errorf("records: %v", keys)
	}
}

// Each operator act leaves one audit record with its author and the difference.
func TestAudit(t *testing.T) {
	s, prefix := testConn(t)
	for _, args := range [][]string{
		{"apply", "-f", "-"}, {"apply", "-f", "-"}, {"rc", "scale", "web", "5"}, {"rc", "scale", "web", "5"}, {
			"rc",
			"delete", "web", "--force",
		}, {"rc", "delete", "web"},
	} {
		if code, _, errs := run(t, prefix, goodDocument, args...); code != exitDone {
			t.Fatalf("%v: %s", args, errs)
		}
	}
	audit, _, err := s.ListAudit(t.Context(), store.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range audit {
		if !strings.Contains(a.Who, "@") || a.RCID == "" || len(a.Changes) == 0 {
			t.Errorf("%+v", a)
		}
		got = append(got, a.What)
	}
	if want := "create scale delete"; strings.Join(got, " ") != want {
		t.Fatalf("got %v, want %s", got, want)
	}
	if lines := strings.Join(audit[0].Changes, "\n"); !strings.Contains(lines,
		"replica_groups[main].count: (none) -> 3") || strings.Contains(lines, "fast") {
		t.Errorf("creation:\n%s", lines)
	}
	if audit[1].Changes[0] != "replica_groups[main].count: 3 -> 5" {
		t.Errorf("scale: %v", audit[1].Changes)
	}
}

// lineWriter sends each line that is written to a channel.
type lineWriter struct{ lines chan string }

func (l lineWriter) Write(p []byte) (int, error) {
	l.lines <- string(p)
	return len(p), nil
}

func (s *conn) put(t *testing.T, key, format string, args ...any) {
	t.Helper()
	if _, err := s.consul.Commit(t.Context(),
		[]consul.Op{consul.Set(key, fmt.Appendf(nil, format, args...))}); err != nil {
		t.Fatal(err)
	}
}

// A wait follows the reports and ends with the goal.
func TestWaitConverged(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	s.put(t, s.Keys().Farms.Key("f1"), `{"id":"f1"}`)
	stderr := lineWriter{make(chan string)}
	var out bytes.Buffer
	done := make(chan error)
	go func() {
		s.stdio = &stdio{out: &out, err: stderr}
		done <- waitConverged(t.Context(), s, r, time.Minute)
	}()
	if got := <-stderr.lines; got != "rc web: waiting for its farm to report\n" {
		t.Error(got)
	}
	s.put(t, s.Keys().Statuses.Key(r.ID), `{"rc_id":%q,"observed_generation":1,"desired":3,"available":1}`, r.ID)
	if got := <-stderr.lines; got != "rc web: 1 of 3 replicas available\n" {
		t.Error(got)
	}
	s.put(t, s.Keys().Statuses.Key(r.ID), `broken`)
	if got := <-stderr.lines; !strings.Contains(got, "unreadable record") {
		t.Error(got)
	}
	s.put(t, s.Keys().Statuses.Key(r.ID),
		`{"rc_id":%q,"observed_generation":1,"desired":3,"available":3,`+
			`"conditions":[{"type":"Converged","true":true}]}`, r.ID)
	if err := <-done; err != nil || out.String() != "rc web converged (generation 1, 3 of 3 available)\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// A generation that somebody replaced will never converge.
func TestWaitReplaced(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	if _, err := s.changeRC(t.Context(), r.ID,
		func(_ context.Context, r *rc.RC) (change,
			error,
		) {
			return computeScale(current{rc: r}, "", 9, false)
		}); err != nil {
		t.Fatal(err)
	}
	s.stdio = &stdio{out: io.Discard, err: io.Discard}
	err := waitConverged(t.Context(), s, r, time.Minute)
	var refused *codedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "generation 1 was replaced by 2 (changed by ") {
		t.Error(err)
	}
	s.delete(t, s.Keys().RCs.Key(r.ID))
	if err := waitConverged(t.Context(), s, r, time.Minute); !errors.As(err, &refused) ||
		!strings.Contains(err.Error(), "was deleted before") {
		t.Error(err)
	}
}

func (s *conn) delete(t *testing.T, key string) {
	t.Helper()
	if _, err := s.consul.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
		t.Fatal(err)
	}
}

func TestWaitGone(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	stderr := lineWriter{make(chan string)}
	var out bytes.Buffer
	done := make(chan error)
	go func() {
		s.stdio = &stdio{out: &out, err: stderr}
		done <- waitGone(t.Context(), s, r, time.Minute)
	}()
	if got := <-stderr.lines; got != "rc web: waiting for a farm: no farm is running\n" {
		t.Error(got)
	}
	s.delete(t, s.Keys().RCs.Key(r.ID))
	if err := <-done; err != nil || out.String() != "rc web is gone\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// The wait for a deleted service ends when no revision has a record.
func TestWaitServiceGone(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	stderr := lineWriter{make(chan string)}
	var out bytes.Buffer
	done := make(chan error)
	go func() {
		s.stdio = &stdio{out: &out, err: stderr}
		gone := rc.RC{ID: store.NewID(), Name: "web-r1"}
		done <- waitServiceGone(t.Context(), s, "web", []record.Controller{{RC: gone}, {RC: r}}, time.Minute)
	}()
	if got := <-stderr.lines; got != "service web: web: waiting for a farm: no farm is running\n" {
		t.Error(got)
	}
	s.delete(t, s.Keys().RCs.Key(r.ID))
	if err := <-done; err != nil || out.String() != "all revisions of service web are gone\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// A signal ends a wait with the exit code for a change that is written.
func TestWaitInterrupted(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	stderr := lineWriter{make(chan string, 9)}
	done := make(chan error)
	s.stdio = &stdio{out: io.Discard, err: stderr}
	go func() { done <- waitConverged(ctx, s, r, time.Minute) }()
	<-stderr.lines
	cancel()
	err := <-done
	var wait *codedError
	if !errors.As(err, &wait) || !strings.Contains(err.Error(), "generation 1 is written; interrupted") ||
		s.report(err) != exitWait {
		t.Error(err)
	}
}

// With ACLs the owner of the token is the author. With a token that may not write, or without a token, nothing changes.
func TestToken(t *testing.T) {
	const management = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	server, err := consultest.Start(`{"primary_datacenter": "dc1", "acl": {"enabled": true, "default_policy": "deny",
		"tokens": {"initial_management": "` + management + `", "agent": "` + management + `"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	with := func(token string, args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		all := []string{"rcctl", "--consul-addr", server.Addr}
		if token != "" {
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			all = append(all, "--token-file", file)
		}
		all = append(all, args...)
		code := Main(t.Context(), all, strings.NewReader(goodDocument), &out, &errs)
		return code, out.String(), errs.String()
	}
	var code int
	var out, errs string
	consultest.Eventually(t, 30*time.Second, func() error { // until the server has made its management token
		if code, out, errs = with(management, "apply", "-f", "-"); code != exitDone {
			return errors.New(errs)
		}
		return nil
	})
	if !strings.Contains(out, "rc web ") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if _, out, _ = with(management, "rc", "get", "web"); !strings.Contains(out,
		"(changed by Initial Management Token (token ") {
		t.Error(out)
	}
	for _, args := range [][]string{
		{"rc", "list"},
		{"pods"},
		{"nodes"},
		{"rc", "get", "web"},
		{"rc", "scale", "web", "1"},
		{"apply", "-f", "-"},
	} {
		for _, token := range []string{"", "00000000-0000-0000-0000-00000000dead"} {
			if code, out, errs := with(token, args...); code != exitError || out != "" ||
				!strings.Contains(errs, "403") && !strings.Contains(errs, "filtered by ACLs") {
				t.Errorf("%v with token %q: exit code %d\n%s%s", args, token, code, out, errs)
			}
		}
	}
	var said bytes.Buffer
	if code := Main(t.Context(),
		[]string{"rcctl", "--consul-addr", server.Addr, "--token-file", "/nowhere/token", "rc", "list"}, nil, &said,
		&said); code != exitUsage || !strings.Contains(said.String(), "/nowhere/token") {
		t.Errorf("a token file that is not there: exit code %d, %s", code, said.String())
	}
}
