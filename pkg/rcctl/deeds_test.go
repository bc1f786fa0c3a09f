package rcctl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// writer is a command that writes, on the cluster that aCluster makes.
type writer struct {
	args string
	verb string // of the audit record
	what string // how its last write is named
	was  string // the write before that, if any
}

var writers = []writer{
	{args: "apply -f -", verb: "apply", what: "rc web: apply, generation 2"},
	{args: "rc create -f -", verb: "create", what: "rc new: create, generation 1"},
	{args: "rc scale web 7", verb: "scale", what: "rc web: scale, generation 2"},
	{args: "rc disable web", verb: "disable", what: "rc web: disable, generation 2"},
	{args: "rc enable idle", verb: "enable", what: "rc idle: enable, generation 3"},
	{args: "rc delete web --force", verb: "delete", what: "rc web: delete, generation 2"},
	{args: "node cordon n1", verb: "cordon", what: "node n1: cordon"},
	{args: "node uncordon n2", verb: "uncordon", what: "node n2: uncordon"},
	{args: "node drain n1", verb: "drain", what: "node n1: drain"},
	{args: "node undrain n2", verb: "undrain", what: "node n2: undrain"},
	{args: "label node n1 a=b", verb: "label", what: "node n1: label"},
	{
		args: "node sweep n1", verb: "sweep-orphan",
		what: "the request to stop old-main-0 on n1: it runs without a controller",
	},
	{
		args: "node sweep n1", verb: "sweep-orphan",
		what: "the request to stop old-main-1 on n1: it runs without a controller",
		was:  "the request to stop old-main-0 on n1: it runs without a controller",
	},
	{args: "node forget n1 --force", verb: "forget-node", what: "node n1: the requests to forget 100 pods more"},
	{
		args: "node forget n1 --force", verb: "forget-node", what: "node n1: the requests to forget 38 pods more",
		was: "node n1: the requests to forget 62 pods",
	},
	{args: "pod forget lost-main-0", verb: "forget-pod", what: "the request to forget lost-main-0 on n1"},
	{args: "farm resume", verb: "resume", what: "the reset of the breaker"},
	{args: "domain set a.example", verb: "set-domain", what: "the domain of the cluster"},
	{args: "farm release-hold n3", verb: "release-hold", what: "node n3: release-hold"},
}

// aCluster writes the records on which the commands in writers act.
func aCluster(t *testing.T) (s *conn, prefix string) {
	t.Helper()
	s, prefix = testConn(t)
	create(t, s)
	for _, args := range [][]string{{"apply", "-f", "-"}, {"rc", "disable", "idle"}} {
		if code, _, errs := run(t, prefix, strings.Replace(goodDocument, "name: web", "name: idle", 1),
			args...); code != exitDone {
			t.Fatal(errs)
		}
	}
	k := s.Keys()
	putRecord(t, s, k.Nodes.Key("n1"),
		`{"name":"n1","orphans":[{"rc_id":"01gone","role":"main","index":0,"pod_id":"old","digest":"d000000000000000000000000000000000000000000000000000000000000000","revision":1},
		{"rc_id":"01gone","role":"main","index":1,"pod_id":"old","digest":"d000000000000000000000000000000000000000000000000000000000000000","revision":1}]}`)
	putRecord(t, s, k.Nodes.Key("n2"), `{"name":"n2"}`)
	putRecord(t, s, k.NodeOps.Key("n2"), `{"name":"n2","unschedulable":true,"drain":{"since":"2026-01-02T03:04:05Z"}}`)
	putRecord(t, s, k.Reservations.Key("n2"), `{"holders":{},"closed":true}`)
	putRecord(t, s, k.Gate.Key(), `{"version":"0.2.0"}`)
	putRecord(t, s, k.Breaker.Key(), `{"tripped":true,"since":"2026-01-02T03:04:05Z"}`)
	for i := range 100 {
		putRecord(t, s, fmt.Sprintf("%smain.%d", k.Pods.Below("01lost"), i), fmt.Sprintf(
			`{"rc_id":"01lost","role":"main","index":%d,"node":"n1","pod_id":"lost","digest":"d000000000000000000000000000000000000000000000000000000000000000","revision":1,"run_state":"running"}`, i))
	}
	registerPassing(t, prefix, "n3")
	return s, prefix
}

// faultAt forwards the first pass writes of a command, applies the verdict to the next write, and cuts all later
// requests. At the first of these later requests it calls leave, which interrupts the command. It recognizes a write by
// the audit record in it.
func faultAt(prefix string, pass int, verdict consultest.Verdict, leave func()) func(*http.Request) consultest.Verdict {
	over := false
	return func(r *http.Request) consultest.Verdict {
		body, _ := io.ReadAll(r.Body) // an unreadable body is no write
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch {
		case over:
			leave()
			return consultest.CutBefore
		case r.URL.Path != "/v1/txn" || !strings.Contains(string(body), `"`+prefix+"audit/"):
			return consultest.Forward
		case pass > 0:
			pass--
			return consultest.Forward
		}
		over = true
		return verdict
	}
}

// A command that loses Consul reports what was written, that nothing was written, or that this is unknown. If it is
// unknown, the message names a command that shows it.
func TestErrorsReportWhatWasWritten(t *testing.T) {
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	for _, w := range writers {
		name, passed := w.args, 0
		if w.was != "" {
			name, passed = name+" again", 1
		}
		for fault, verdict := range map[string]consultest.Verdict{
			"before": consultest.CutBefore, "after": consultest.CutAfter,
		} {
			t.Run(name+"/"+fault, func(t *testing.T) {
				s, prefix := aCluster(t)
				document := strings.Replace(goodDocument, "rack in", "rack notin", 1)
				if strings.HasPrefix(w.args, "rc create") {
					document = strings.Replace(goodDocument, "name: web", "name: new", 1)
				}
				was := len(keysBelow(t, s.consul, prefix))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				proxy.Set(faultAt(prefix, passed, verdict, leave))
				code, _, errs := runAt(ctx, proxy.Addr, prefix, document, strings.Fields(w.args)...)
				if told := "\nit is not known whether this was written: " + w.what +
					"; to see: rcctl audit "; code != exitError || !strings.Contains(errs, told) {
					t.Fatalf("exit code %d, want %s\n%s", code, told, errs)
				}
				if told := "\nthis was written: " + w.was + "\n"; w.was != "" && !strings.Contains(errs, told) ||
					w.was == "" && strings.Contains(errs, "\nthis was written") {
					t.Errorf("want %s\n%s", told, errs)
				}
				shows := regexp.MustCompile("to see: rcctl (.*)\n").FindStringSubmatch(errs)[1]
				code, out, errs := run(t, prefix, "", strings.Fields(shows)...)
				want := passed
				if verdict == consultest.CutAfter {
					want++
				}
				if entries := strings.Count(out, "  "+w.verb+"  "); code != exitDone || entries != want {
					t.Errorf("%s: exit code %d, %d entries, want %d\n%s%s", shows, code, entries, want, out, errs)
				}
				if now := len(keysBelow(t, s.consul, prefix)); now > was != (want > 0) {
					t.Errorf("%d keys, before %d", now, was)
				}
			})
		}
	}
}

// A command that writes reports that nothing was written, if it finds no Consul or loses Consul before its write. A
// command that only reads does not report this.
func TestErrorsReportThatNothingWasWritten(t *testing.T) {
	s, prefix := aCluster(t)
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	index := func() (all []string) {
		pairs, err := s.consul.List(t.Context(), prefix, consul.Consistent)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pairs {
			all = append(all, fmt.Sprint(p.Key, p.ModifyIndex))
		}
		return all
	}
	was := index()
	for _, w := range writers {
		requests := 0
		for _, allowed := range []int{0, 2} { // each command sends more reads before it writes
			proxy.Set(func(*http.Request) consultest.Verdict {
				if requests++; requests > allowed {
					return consultest.CutBefore
				}
				return consultest.Forward
			})
			code, _, errs := runAt(t.Context(), proxy.Addr, prefix, goodDocument, strings.Fields(w.args)...)
			if code != exitError || !strings.HasSuffix(errs, "\nnothing was written\n") {
				t.Errorf("%s, %d requests: exit code %d\n%s", w.args, allowed, code, errs)
			}
		}
	}
	if now := index(); !slices.Equal(now, was) {
		t.Errorf("before:\n%v\nafter:\n%v", was, now)
	}
	proxy.Set(consultest.Always(consultest.CutBefore))
	for _, args := range [][]string{{"rc", "list"}, {"rc", "get", "web"}, {"nodes"}, {"pods"}, {"audit"}} {
		if code, _, errs := runAt(t.Context(), proxy.Addr, prefix, "", args...); code != exitError ||
			strings.Contains(errs, "written") {
			t.Errorf("%v: exit code %d\n%s", args, code, errs)
		}
	}
}

// If Consul's answer to a change was lost, or Consul never got the change, the change is made once when Consul is back.
func TestALostAnswerIsNoFailure(t *testing.T) {
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	for _, verdict := range []consultest.Verdict{consultest.CutBefore, consultest.CutAfter} {
		s, prefix := testConn(t)
		r := create(t, s)
		proxy.Set(consultest.OnTxn(verdict))
		if code, _, errs := runAt(t.Context(), proxy.Addr, prefix, "", "rc", "scale", "web", "7"); code != exitDone ||
			errs != "" {
			t.Errorf("exit code %d: %s", code, errs)
		}
		if rec, err := s.RCs.Get(t.Context(), store.Consistent, r.ID); err != nil || rec.Value.Generation != 2 ||
			rec.Value.Desired() != 7 {
			t.Errorf("%+v, %v", rec.Value, err)
		}
	}
}

// In an empty cluster a command writes the cluster's first records before its own. An error reports them, too.
func TestErrorsReportTheFirstRecords(t *testing.T) {
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	_, prefix := testConn(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	proxy.Set(faultAt(prefix, 0, consultest.CutAfter, leave))
	code, _, errs := runAt(ctx, proxy.Addr, prefix, goodDocument, "apply", "-f", "-")
	if code != exitError ||
		!strings.Contains(errs,
			"\nthis was written: the records that a new cluster begins with\nit is not known whether this was "+
				"written: rc web: create, generation 1;") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// If Consul accepts a request and does not answer, the call times out, and the error reports what was written.
func TestATimeoutReportsWhatWasWritten(t *testing.T) {
	_, prefix := aCluster(t)
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	proxy.Set(faultAt(prefix, 1, consultest.Stall, func() {}))
	code, _, errs := runAt(t.Context(), proxy.Addr, prefix, "", "node", "sweep", "n1")
	want := "\nthis was written: the request to stop old-main-0 on n1: it runs without a controller" +
		"\nit is not known whether this was written: the request to stop old-main-1 on n1: it runs without a " +
		"controller; to see: rcctl audit --node n1\n"
	if code != exitError || !strings.Contains(errs, "deadline exceeded") || !strings.HasSuffix(errs, want) {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// registerPassing registers the service of a living preparer in Consul. Its check passes for an hour, and nothing
// renews it.
func registerPassing(t *testing.T, prefix, node string) {
	t.Helper()
	service, err := passingService(prefix, node)
	if err == nil {
		_, err = raw(consultest.Shared(t).Addr, http.MethodPut, "agent/service/register", service)
	}
	if err != nil {
		t.Fatal(err)
	}
}
