//go:build sequences

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Each run has other sequences, so only `make sequences` runs this scenario.
func init() { scenarios = map[string]func(*env){"sequences": sequences} }

// After each operation of one service, every other service has one.
const (
	sequenceServices = 4
	sequenceLength   = 14
)

type sequence struct {
	e       *env
	rnd     *rand.Rand
	name    string
	version int
	want    int // replicas that the last command asked for, of those that were carried out
	// replicas that were last asked for each controller, by its name: a rollout that fails goes back to them
	counts map[string]int
	labels string         // value of a label of its pods
	paused bool           // whether an operator has paused the rollout
	did    []string       // commands since the service was at rest
	before map[string]set // pods at rest, by the name of their controller
	said   map[string]int // how many pods plans have announced to stop since, by the name of their controller
}

type set map[string]bool

// sequences: services go through random deploys, scalings, changed labels, rollbacks and pauses, also during rollouts
// and with versions that never become available. At rest, the pods match the document in effect, with the replicas that
// were asked for last, and a new plan of it is empty. No controller has lost more pods than the plans announced.
func sequences(e *env) {
	e.startConsul("")
	e.farm("f1", "")
	sick := &digests{}
	for n := range 6 {
		e.simulated(fmt.Sprintf("s%d", n), sick)
	}
	// without these, stops of so few services would trip the breaker
	bystander := e.writeRC("bystander", 100, func(*rc.RC) {})
	e.within(limit, func() error { return e.availableAll(bystander, 100) })
	seed := time.Now().UnixNano()
	e.t.Logf("seed %d", seed)
	all := make([]*sequence, sequenceServices)
	for i := range all {
		all[i] = &sequence{
			e: e, rnd: rand.New(rand.NewSource(seed + int64(i))), name: fmt.Sprintf("web-%c", 'a'+i),
			said: map[string]int{}, counts: map[string]int{},
		}
		all[i].deploy(sick, false, 3)
	}
	for _, s := range all {
		s.rest() // before its first rollout is done, a service has nothing to go back to
	}
	for range sequenceLength {
		for _, s := range all {
			if s.rnd.Intn(3) > 0 || s.busy() > 3 {
				s.rest()
			}
		}
		for _, s := range all {
			s.operate(sick)
		}
	}
	for _, s := range all {
		s.rest()
	}
}

type digests struct {
	mu  sync.Mutex
	all set
}

func (d *digests) add(digest string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = set{}
	}
	d.all[digest] = true
}

func (d *digests) has(digest string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[digest]
}

func (e *env) simulated(name string, sick *digests) {
	e.t.Helper()
	client, err := consul.New(consul.Config{Address: e.consul.Addr, CallTimeout: limit})
	if err != nil {
		e.t.Fatal(err)
	}
	n := &simnode.Node{
		Record: node.Node{Name: name, Capacity: node.Capacity{Slots: 100}}, Client: client,
		Store: store.New(client, e.store.Keys()), TTL: time.Minute,
		React: func(in pod.Intent) pod.Reality {
			r := simnode.Obey(in)
			if r.Available && sick.has(in.Digest) {
				r.State, r.Available = pod.StateRunning, false
			}
			return r
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	e.t.Cleanup(func() {
		cancel()
		<-done
		client.Close()
	})
}

// busy returns how many operations there were since the last rest.
func (s *sequence) busy() int { return len(s.did) }

func (s *sequence) operate(sick *digests) {
	switch k := s.rnd.Intn(12); {
	case s.paused:
		s.rcctl(nil, "rollout", "resume", s.name)
		s.paused = false
	case k < 4:
		s.deploy(sick, false, 1+s.rnd.Intn(5))
	case k < 5:
		s.deploy(sick, true, s.want)
	case k < 6:
		s.labels = strconv.Itoa(s.rnd.Intn(3))
		s.deploy(sick, false, s.want)
	case k < 9:
		n := 1 + s.rnd.Intn(5)
		s.asks(n, nil, "scale", s.name, strconv.Itoa(n), "--yes", "--detach")
	case k < 11:
		s.asks(s.want, nil, "rollback", s.name, "--yes", "--detach")
	default:
		_, s.paused = s.rcctl(nil, "rollout", "pause", s.name)
	}
}

// deploy deploys a new version in half of the cases, and otherwise other numbers or labels. A sick version is always
// new.
func (s *sequence) deploy(sick *digests, isSick bool, replicas int) {
	s.e.t.Helper()
	if isSick || s.version == 0 || s.rnd.Intn(2) == 0 {
		s.version++
	}
	patience := "1m" // so long that a version that works is not rolled back on a busy machine
	if isSick {
		patience = "2s"
	}
	doc := map[string]any{
		"name": s.name, "replicas": replicas, "pod_labels": map[string]string{"of": s.labels},
		"update": map[string]any{"stage_timeout": patience, "on_timeout": "rollback"},
		"pod": map[string]any{"version": 1, "id": s.name, "min_ready": "0s", "launchables": []any{map[string]any{
			"name": "main", "artifact": map[string]string{
				"kind": "tar", "url": "https://files.example/main.tar.gz",
				"sha256": strings.Repeat("0", 64),
			},
			"env": map[string]string{"VERSION": strconv.Itoa(s.version), "SICK": strconv.FormatBool(isSick)},
		}}},
	}
	data, err := json.Marshal(doc)
	if err != nil {
		s.e.t.Fatal(err)
	}
	spec, err := record.Decode(data)
	if err != nil {
		s.e.t.Fatal(err)
	}
	canonical, err := spec.Pod.Canonical()
	if err != nil {
		s.e.t.Fatal(err)
	}
	if isSick {
		sick.add(manifest.Digest(canonical))
	}
	s.asks(replicas, data, "deploy", "-f", "-", "--yes", "--detach")
}

var (
	stopsOf = regexp.MustCompile(`- +stop (\d+) pods? of (\S+)`)
	creates = regexp.MustCompile(`\+ +create controller (\S+)`)
)

// asks runs a command that asks for a number of pods. If the command creates a controller, the pods are for this one.
// Else they are for all controllers, because the rollout under way decides which one remains.
func (s *sequence) asks(replicas int, stdin []byte, args ...string) {
	s.e.t.Helper()
	out, ok := s.rcctl(stdin, args...)
	if !ok {
		return
	}
	s.want = replicas
	if m := creates.FindStringSubmatch(out); m != nil {
		s.counts[m[1]] = replicas
		return
	}
	for name := range s.counts {
		s.counts[name] = replicas
	}
}

// rcctl records the stops that a command announces. rcctl may refuse a command because of the service's state.
func (s *sequence) rcctl(stdin []byte, args ...string) (string, bool) {
	s.e.t.Helper()
	out, err := s.e.tryRcctl(string(stdin), args...)
	s.did = append(s.did, fmt.Sprintf("%s\n%s%s", strings.Join(args, " "), stdin, out))
	if err != nil {
		if !strings.Contains(err.Error(), "exit status 4") && !strings.Contains(err.Error(), "exit status 3") {
			s.fail("%v", err)
		}
		return out, false
	}
	for _, m := range stopsOf.FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(m[1])
		s.said[m[2]] += n
	}
	return out, true
}

// fail prints the commands since the last rest.
func (s *sequence) fail(format string, args ...any) {
	s.e.t.Helper()
	s.e.t.Fatalf("service %s: %s; since it was at rest:\n%s", s.name,
		fmt.Sprintf(format, args...), strings.Join(s.did, "\n"))
}

func (s *sequence) rest() {
	s.e.t.Helper()
	if s.paused {
		s.rcctl(nil, "rollout", "resume", s.name)
		s.paused = false
	}
	var svc *record.Service
	s.e.within(limit, func() (err error) {
		if svc, err = s.settled(); err != nil {
			err = fmt.Errorf("service %s does not come to rest: %w; since it was:\n%s",
				s.name, err, strings.Join(s.did, "\n"))
		}
		return err
	})
	effect := svc.InEffect()
	current := svc.Controller(effect.RC)
	if current == nil {
		s.fail("%s, the controller of the document in effect, is gone; the history is %+v", effect.RC, svc.History)
	}
	if got, want := effect.Spec.Total(), s.counts[current.RC.Name]; got != want {
		s.fail("the document in effect asks for %d pods of %s, and %d were asked for last", got, current.RC.Name, want)
	}
	s.want = effect.Spec.Total()
	digest := current.RC.ManifestDigest
	canonical, err := effect.Spec.Pod.Canonical()
	if err != nil || manifest.Digest(canonical) != digest {
		s.fail("the document in effect is of another manifest than its controller: %v", err)
	}
	after := map[string]set{}
	for i := range svc.Controllers {
		r := &svc.Controllers[i].RC
		pods := s.e.placements(r.ID)
		after[r.Name] = set{}
		for id, p := range pods {
			after[r.Name][id] = true
			if p.Value.Digest != digest || p.Value.Labels["of"] != effect.Spec.PodLabels["of"] {
				s.fail("%s of %s runs %.12s with the label %q, and the document in effect says %.12s and %q", id,
					r.Name, p.Value.Digest, p.Value.Labels["of"], digest, effect.Spec.PodLabels["of"])
			}
		}
		if r.ID == effect.RC && len(pods) != s.want || r.ID != effect.RC && len(pods) > 0 {
			s.fail("%s has %d pods, and %s is in effect with %d", r.Name, len(pods), effect.RC, s.want)
		}
	}
	for name, pods := range s.before {
		lost := 0
		for id := range pods {
			if !after[name][id] {
				lost++
			}
		}
		if lost > s.said[name] {
			s.fail("%s has lost %d pods, and the plans said %d", name, lost, s.said[name])
		}
	}
	client := &deploy.Client{Store: s.e.store, Who: "scenario"}
	state, _, err := deploy.State(s.e.t.Context(), s.e.store)
	if err != nil {
		s.e.t.Fatal(err)
	}
	p, err := plan.NewDeployment(client, effect.Spec, &plan.ServicePlanner{State: state}).Plan(s.e.t.Context())
	if err != nil || !p.Empty() {
		s.fail("a second plan of the document in effect is not empty: %v, %v", err, p.Lines())
	}
	s.before, s.said, s.did = after, map[string]int{}, nil
}

// settled returns the service if no rollout is under way and no owner has anything to do.
func (s *sequence) settled() (*record.Service, error) {
	ctx := s.e.t.Context()
	svc, err := s.e.store.Deployments.Service(ctx, s.name)
	if err != nil {
		return nil, err
	}
	if svc.Rollout != nil {
		return nil, fmt.Errorf("rollout %s is %s: %s", svc.Rollout.ID, svc.Rollout.State, svc.Rollout.Reason)
	}
	for i := range svc.Controllers {
		c := &svc.Controllers[i]
		st := c.Status
		if st == nil || st.ObservedGeneration != c.RC.Generation || st.Stopping > 0 ||
			st.Placed != c.RC.Desired() || st.Available != c.RC.Desired() {
			return nil, fmt.Errorf("%s asks for %d pods: %+v", c.RC.Name, c.RC.Desired(), st)
		}
	}
	return svc, nil
}
