package register

import (
	"errors"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

func seconds(n int) *field.Duration {
	d := field.Duration(time.Duration(n) * time.Second)
	return &d
}

// hangs passes within 3 s, or after 10 s of failures restarts the pod.
var hangs = manifest.Health{Interval: seconds(2), Timeout: seconds(1), RestartAfter: seconds(10)}

// A pod is restarted only if the check has failed all the time for its present processes.
func TestFailingForLong(t *testing.T) {
	t.Parallel()
	slow := hangs
	slow.SuccessThreshold = 5
	free := hangs
	free.RestartAfter = nil
	for name, tt := range map[string]struct {
		health *manifest.Health
		// said has one character each second: f failing, p passing, . no answer, _ no look. From N on, other processes
		// run; from - on, not all.
		said string
		want string // x: hung; X: hung, and the check has never passed
	}{
		"at last":                    {&hangs, "ppppfffffffffff", "              x"},
		"never passed":               {&hangs, "...ffffffffffff", "             XX"},
		"an answer about former":     {&hangs, "fffffffffffffff", "             XX"},
		"a pass in between":          {&hangs, "ppppffffffffpffffffffffff", "                       xx"},
		"the agent is silent":        {&hangs, "ppppfffffffff.ffffffffffff", "                        xx"},
		"silent for long":            {&hangs, "ppppfff........................", ""},
		"nobody looks":               {&hangs, "ppppffff_____________fffffffffff", "                               x"},
		"nobody looks for a moment":  {&hangs, "ppppffff__fff_ff", "              xx"},
		"registered and not yet run": {&hangs, "..............................", ""},
		"other processes":            {&hangs, "ppppfffffffffNffffffffffffff", "                          XX"},
		"started again": {
			&hangs, "ppppffffffffffffN....fffffffffffff",
			"              xx               XXX",
		},
		"one of them waits":       {&hangs, "ppppfffffffff-fffffffffffff", ""},
		"it takes longer to pass": {&slow, "ffffffffffffffffffffff", "                     X"},
		"not asked for":           {&free, "ffffffffffffffffffffff", ""},
		"no check":                {nil, "ffffffffffffffffffffff", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, got := failing{}, ""
			runs := "a"
			for second, said := range tt.said {
				says := map[rune]answer{'f': fails, 'p': passes}[said]
				switch said {
				case 'N':
					runs = "b"
				case '-':
					runs = ""
				case '_':
					got += " "
					continue
				}
				f = f.next(time.Hour+time.Duration(second)*time.Second, runs, says, tt.health)
				switch h := f.hung(); {
				case h.Runs == "":
					got += " "
				case h.Runs != runs:
					t.Fatalf("hung is %+v, and %s runs", h, runs)
				case h.Never:
					got += "X"
				default:
					got += "x"
				}
			}
			for len(tt.want) < len(got) {
				tt.want += " "
			}
			if got != tt.want {
				t.Errorf("says %q\nhung %q\nwant %q", tt.said, got, tt.want)
			}
		})
	}
}

// If the agent or the script did not answer, the check has no answer.
func TestAnswersOfChecks(t *testing.T) {
	t.Parallel()
	id := pod.Identity{RCID: "rc", Role: "main"}
	http, script := hangs, hangs
	http.HTTP, script.Script = &manifest.HTTPCheck{Port: "http", Path: "/"}, &manifest.ScriptCheck{Path: "check"}
	for name, tt := range map[string]struct {
		health  *manifest.Health
		agent   consul.Health // about the pod's service
		err     error         // of the agent
		verdict *verdict      // of the script; nil: no verdict
		rests   bool          // the initial delay is not over
		want    bool          // whether it counts as failing
	}{
		"failed":            {health: &http, agent: consul.Health{Failed: true}, want: true},
		"passes":            {health: &http, agent: consul.Health{Passing: true}},
		"not run yet":       {health: &http, agent: consul.Health{}},
		"the agent is away": {health: &http, agent: consul.Health{Failed: true}, err: errors.New("away")},
		"initial delay":     {health: &http, agent: consul.Health{Failed: true}, rests: true},
		"script failed": {
			health: &script, agent: consul.Health{Passing: true},
			verdict: &verdict{ran: true}, want: true,
		},
		"script failed, no agent": {
			health: &script, err: errors.New("away"),
			verdict: &verdict{ran: true}, want: true,
		},
		"script passes": {
			health: &script, agent: consul.Health{Failed: true},
			verdict: &verdict{passing: true, ran: true},
		},
		"script cannot be run":     {health: &script, agent: consul.Health{Failed: true}, verdict: &verdict{}},
		"lapsed before any answer": {health: &script, agent: consul.Health{Failed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := 0
			r, err := New(Config{
				Node: node.Node{Name: "n1", Address: "127.0.0.1"}, Dir: t.TempDir(),
				Changed: func(map[pod.Identity]time.Time) { changed++ },
			})
			if err != nil {
				t.Fatal(err)
			}
			p := Pod{
				ID: id, Installed: &install.Installed{
					Digest: "d",
					Ports:  map[string]int{"http": 80},
				}, Manifest: &manifest.Manifest{ID: "web", Health: tt.health},
				Up: true, Alive: true, Rested: true, Runs: "a",
			}
			s := r.of(id)
			s.fingerprint = changeOf(&r.cfg.Node, &p).fingerprint
			if tt.health.Script != nil {
				s.script = &scriptWatch{known: tt.verdict != nil}
				if tt.verdict != nil {
					s.script.verdict = *tt.verdict
				}
			}
			p.Rested = !tt.rests
			fail := false
			for second := range 20 {
				now := r.began.Add(time.Duration(second) * time.Second)
				r.saw([]Pod{p}, map[string]consul.Health{ServiceID("n1", id): tt.agent}, tt.err, now, Running)
				before := changed
				fail = r.sawAnswers([]Pod{p}, tt.err == nil, now)
				if reported := changed > before; reported != (tt.want && second == 13) {
					t.Errorf("after %d s it is reported that the pod hangs: %t", second, reported)
				}
			}
			if hung := r.StateOf(id).Hung.Runs == "a"; hung != tt.want || fail != tt.want {
				t.Errorf("fails %t, hung %t; want %t", fail, hung, tt.want)
			}
		})
	}
}
