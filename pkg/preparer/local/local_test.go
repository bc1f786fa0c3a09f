package local_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/local"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// version returns a manifest of the service web, with a static port unless static is zero.
func version(cpu, dynamic, static int) manifest.Manifest {
	m := manifest.Manifest{Version: manifest.Version, ID: "web", Launchables: []manifest.Launchable{{
		Name: "main", Artifact: manifest.Artifact{
			Kind: manifest.ArtifactExec,
			Path: "/bin/sleep",
		}, Resources: manifest.Resources{CPU: manifest.Millicores(cpu)},
	}}}
	for i := range dynamic {
		m.Ports = append(m.Ports, manifest.Port{Name: fmt.Sprintf("d%d", i), Dynamic: true})
	}
	if static != 0 {
		m.Ports = append(m.Ports, manifest.Port{Name: "s", Port: static})
	}
	return m
}

func specOf(t interface{ Fatal(...any) }, m manifest.Manifest) *scale.Spec {
	canonical, err := m.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	return &scale.Spec{Manifest: canonical}
}

type world struct {
	t    *rapid.T
	view *node.View
	res  node.Reservation
	all  map[string]*local.Service
	runs map[pod.Identity]copied
	now  time.Time
	last int64 // highest revision of the accepted requests
}

type copied struct {
	seen   local.Seen
	digest string
	claims []node.Claim // shares of the versions that may run
}

func (w *world) seen() map[pod.Identity]local.Seen {
	seen := map[pod.Identity]local.Seen{}
	for id, c := range w.runs {
		seen[id] = c.seen
	}
	return seen
}

// ask makes the same calls as the preparer.
func (w *world) ask(r scale.Request) {
	spec, digest, err := local.Read(r)
	if err != nil {
		w.t.Fatal(err)
	}
	next, err := local.Take(w.all["web"], r, spec, digest, w.seen(), w.now)
	if errors.Is(err, scale.ErrUnknownService) && w.all["web"] == nil && r.Spec == nil {
		return
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if next.Wants() {
		all := maps.Clone(w.all)
		next = next.Clone()
		all["web"] = next
		res, err := local.Book(all, local.Room{View: w.view, Reservation: w.res, Seen: w.seen()})
		if errors.Is(err, scale.ErrConflict) {
			return
		}
		if err != nil {
			w.t.Fatal(err)
		}
		w.res = res
		if rapid.Bool().Draw(w.t, "killed before the file is written") {
			return
		}
	}
	w.keep(next)
	w.last = max(w.last, r.Revision)
	want := r.Replicas
	if next.Running() != int(want) {
		w.t.Fatalf("%d replicas asked for: %+v", want, next)
	}
}

// keep also tests a restart: it writes and reads the file.
func (w *world) keep(next *local.Service) {
	w.all["web"] = again(w.t, next)
}

// again returns the service that the next preparer would read.
func again(t interface{ Fatal(...any) }, s *local.Service) *local.Service {
	dir, err := os.MkdirTemp("", "local")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	d, err := local.OpenDisk(dir)
	if err == nil {
		err = d.Save(*s)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, bad, err := d.Load()
	if err != nil || len(bad) > 0 || len(all) != 1 {
		t.Fatal(err, bad)
	}
	return &all[0]
}

func (w *world) work() {
	s := w.all["web"]
	if s == nil {
		return
	}
	intents := s.Intents()
	if len(intents) == 0 {
		return
	}
	in := intents[rapid.IntRange(0, len(intents)-1).Draw(w.t, "whose turn")]
	c := w.runs[in.Identity]
	switch {
	case in.Revision < c.seen.Revision:
		w.t.Fatalf("%s gets revision %d after %d", in.Identity, in.Revision, c.seen.Revision)
	case in.State == pod.Stopped && rapid.Bool().Draw(w.t, "stopped"):
		c = copied{seen: local.Seen{Revision: in.Revision, Stopped: true}}
	case in.State == pod.Stopped:
	case in.Revision > c.seen.Revision: // the old version may still run for a while
		c.seen, c.digest = local.Seen{Revision: in.Revision}, in.Digest
		var m manifest.Manifest
		if err := json.Unmarshal(s.Specs[in.Digest].Manifest, &m); err != nil {
			w.t.Fatal(err)
		}
		for _, port := range in.Ports {
			if port == 0 {
				w.t.Fatalf("%s has a port without a number: %v", in.Identity, in.Ports)
			}
		}
		if len(in.Ports) != len(m.Ports) {
			w.t.Fatalf("%s has ports %v for %v", in.Identity, in.Ports, m.Ports)
		}
		c.claims = append(slices.Clone(c.claims), node.NewClaim(in.Identity, in.Ports, m.Resources().CPU, 0))
	default:
		c.seen.Converged = rapid.Bool().Draw(w.t, "converged")
		if c.seen.Converged {
			c.claims = c.claims[len(c.claims)-1:]
		}
	}
	w.runs[in.Identity] = c
}

// step does what the preparer does when a pod has changed.
func (w *world) step() {
	s := w.all["web"]
	if s == nil {
		return
	}
	before := s.Intents()
	next, news := s.Next(w.seen(), w.now)
	if !news {
		return
	}
	w.atMostOneTurn(before, next)
	w.keep(next)
}

// atMostOneTurn: a replica gets another version only when all that have it have converged.
func (w *world) atMostOneTurn(before []pod.Intent, next *local.Service) {
	was := map[pod.Identity]pod.Intent{}
	for _, in := range before {
		was[in.Identity] = in
	}
	turned := 0
	for _, in := range next.Intents() {
		if in.Digest != was[in.Identity].Digest {
			turned++
			continue
		}
		seen := w.runs[in.Identity].seen
		if converged := seen.Converged && seen.Revision == in.Revision; in.Digest == next.Digest &&
			in.State == pod.Running && !converged {
			defer func() {
				if turned > 0 {
					w.t.Fatalf("%d replicas are turned while %s has not converged", turned, in.Identity)
				}
			}()
		}
	}
	if turned > 1 {
		w.t.Fatalf("%d replicas are turned at once", turned)
	}
}

func (w *world) tidy() {
	res, err := local.Book(w.all, local.Room{View: w.view, Reservation: w.res, Seen: w.seen()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.res = res
}

// check checks P3: each replica that may run has its share, and all shares fit the node's capacity.
func (w *world) check() {
	ports, cpu := map[int]string{}, int64(0)
	for key, h := range w.res.Claims {
		cpu += h.CPU
		for _, port := range h.Ports {
			if other := ports[port]; other != "" {
				w.t.Fatalf("port %d is that of %s and %s", port, other, key)
			}
			ports[port] = key
		}
	}
	if cpu > w.view.Capacity.CPU || len(w.res.Claims) > w.view.Capacity.Slots {
		w.t.Fatalf("over capacity: %+v", w.res)
	}
	for id, c := range w.runs {
		claim := w.res.Claims[id.String()]
		for _, h := range c.claims {
			if missing := slices.ContainsFunc(h.Ports,
				func(p int) bool { return !slices.Contains(claim.Ports, p) }); missing || h.CPU > claim.CPU {
				w.t.Fatalf("%s may run %+v and has %+v", id, h, claim)
			}
		}
	}
}

// For all requests and steps in any order, and a kill at any moment: the capacity is never exceeded, each replica that
// may run has its share, only one replica at a time gets another version, and revisions grow. In the end the state is
// as the last request asks, without other shares.
func TestHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		farm := pod.Identity{RCID: "rc1", Role: "main"}
		w := &world{
			t: t, all: map[string]*local.Service{}, runs: map[pod.Identity]copied{}, now: time.UnixMilli(1e12),
			view: node.NewView(node.Node{
				Name: "n1", Capacity: node.Capacity{Slots: 5, CPU: 1000},
				PortRange: node.PortRange{Min: 100, Max: 107},
			}, node.Ops{}, true),
			res: node.Reservation{Claims: map[string]node.Claim{farm.String(): node.NewClaim(farm,
				map[string]int{"a": 101, "b": 80}, 200, 0)}},
		}
		revision := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				r := scale.New("web", uint32(rapid.IntRange(0, 4).Draw(t, "replicas")))
				if rapid.Bool().Draw(t, "with a spec") {
					r.Spec = specOf(t, version(rapid.SampledFrom([]int{0, 100, 300}).Draw(t, "cpu"),
						rapid.IntRange(0, 2).Draw(t, "dynamic"), 0))
				}
				if rapid.Bool().Draw(t, "with a revision") {
					revision++
					r.Revision = revision
				}
				w.ask(r)
			},
			"work": func(*rapid.T) { w.work() },
			"step": func(*rapid.T) { w.step() },
			"tidy": func(*rapid.T) { w.tidy() },
			"late": func(*rapid.T) { w.now = w.now.Add(time.Second) },
			"":     func(*rapid.T) { w.check() },
		})
		w.ask(scale.New("web", 0))
		for range 20 {
			if s := w.all["web"]; s != nil {
				for _, in := range s.Intents() {
					w.runs[in.Identity] = copied{seen: local.Seen{Revision: in.Revision, Stopped: true}}
				}
			}
			w.step()
		}
		w.tidy()
		s := w.all["web"]
		if s != nil && (!s.Resting() || s.Revision != w.last || len(s.Specs) != 1) || len(w.res.Claims) != 1 {
			t.Fatalf("left: %+v, %+v", s, w.res)
		}
	})
}

// If a farm places a pod after the first Book, another Book finds its share, and chooses other ports.
func TestBookAgain(t *testing.T) {
	t.Parallel()
	spec, digest, err := local.Read(scale.Request{Service: "web", Replicas: 1, Spec: specOf(t, version(100, 1, 0))})
	if err != nil {
		t.Fatal(err)
	}
	next, err := local.Take(nil, scale.New("web", 1), spec, digest, nil, time.UnixMilli(1))
	if err != nil {
		t.Fatal(err)
	}
	view := node.NewView(node.Node{
		Name: "n1", Capacity: node.Capacity{Slots: 2},
		PortRange: node.PortRange{Min: 1, Max: 2},
	}, node.Ops{}, true)
	book := func(res node.Reservation) (*local.Service, error) {
		trial := next.Clone()
		_, err := local.Book(map[string]*local.Service{"web": trial}, local.Room{View: view, Reservation: res})
		return trial, err
	}
	first, err := book(node.Reservation{})
	if err != nil {
		t.Fatal(err)
	}
	taken := first.Replicas[0].Ports["d0"]
	farm := pod.Identity{RCID: "rc1", Role: "main"}
	res := node.Reservation{Claims: map[string]node.Claim{farm.String(): node.NewClaim(farm,
		map[string]int{"a": taken}, 0, 0)}}
	second, err := book(res)
	if err != nil || second.Replicas[0].Ports["d0"] != 3-taken || !next.Wants() {
		t.Errorf("%+v, %v after %d was taken", second, err, taken)
	}
	res.Ineligible = true
	if _, err := book(res); !errors.Is(err, scale.ErrConflict) {
		t.Errorf("on a drained node: %v", err)
	}
}

// If several pods have a needed port, the error always names the same one.
func TestBookNamesOneHolderOfAPort(t *testing.T) {
	t.Parallel()
	spec, digest, err := local.Read(scale.Request{Service: "web", Replicas: 1, Spec: specOf(t, version(100, 0, 80))})
	if err != nil {
		t.Fatal(err)
	}
	next, err := local.Take(nil, scale.New("web", 1), spec, digest, nil, time.UnixMilli(1))
	if err != nil {
		t.Fatal(err)
	}
	res := node.Reservation{Claims: map[string]node.Claim{}}
	for i := range 10 {
		id := pod.Identity{RCID: "rc1", Role: "main", Index: i}
		res.Claims[id.String()] = node.NewClaim(id, map[string]int{"a": 80}, 0, 0)
	}
	view := node.NewView(node.Node{Name: "n1", Capacity: node.Capacity{Slots: 20}}, node.Ops{}, true)
	for range 100 {
		_, err := local.Book(map[string]*local.Service{"web": next.Clone()}, local.Room{View: view, Reservation: res})
		if !errors.Is(err, scale.ErrConflict) || !strings.HasSuffix(err.Error(), "port 80 is taken by rc1/main.0") {
			t.Fatal(err)
		}
	}
}

// The first replica to get another version is one that has not converged.
func TestTurn(t *testing.T) {
	t.Parallel()
	all := &local.Service{Name: "web", Digest: "new", Specs: map[string]local.Spec{}}
	seen := map[pod.Identity]local.Seen{}
	for i := range 3 {
		all.Replicas = append(all.Replicas, local.Replica{Role: "main", Index: i, Digest: "old", Revision: 5})
		seen[pod.Identity{RCID: "local-web", Role: "main", Index: i}] = local.Seen{Revision: 5, Converged: i != 1}
	}
	next, news := all.Next(seen, time.UnixMilli(9))
	if !news || next.Replicas[1].Digest != "new" || next.Replicas[1].Revision != 9 ||
		next.Replicas[0].Digest != "old" || next.Replicas[2].Digest != "old" {
		t.Errorf("%+v", next)
	}
	if again, news := next.Next(seen, time.UnixMilli(10)); news {
		t.Errorf("the next one has its turn too early: %+v", again)
	}
}

// If no replica of a service runs any more, the node remembers the service, also after a restart: its version, and the
// revision below which requests are too old.
func TestRestingServiceIsRemembered(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1e12)
	ask := func(before *local.Service, n uint32, revision int64, spec *scale.Spec) (*local.Service, error) {
		r := scale.New("web", n)
		r.Revision, r.Spec = revision, spec
		read, digest, err := local.Read(r)
		if err != nil {
			t.Fatal(err)
		}
		next, err := local.Take(before, r, read, digest, nil, now)
		if err == nil {
			next = again(t, next)
		}
		return next, err
	}
	s, err := ask(nil, 2, 9, specOf(t, version(100, 0, 0)))
	if err == nil {
		s, err = ask(s, 0, 10, nil)
	}
	if err != nil || s.Resting() {
		t.Fatalf("%+v, %v", s, err)
	}
	s, news := s.Next(nil, now)
	if s = again(t, s); !news || !s.Resting() || s.StoppedAt == nil || len(s.Intents()) != 0 {
		t.Fatalf("%+v, news: %v", s, news)
	}
	if _, news := s.Next(nil, now); news {
		t.Error("it has news again")
	}
	if _, err := ask(s, 5, 9, specOf(t, version(100, 0, 0))); !errors.Is(err, scale.ErrConflict) {
		t.Errorf("a late request: %v", err)
	}
	for range 2 {
		if s, err = ask(s, 0, 10, nil); err != nil || !s.Resting() {
			t.Fatalf("the same again: %+v, %v", s, err)
		}
	}
	if s, err = ask(s, 3, 0, nil); err != nil || s.Running() != 3 || s.StoppedAt != nil {
		t.Errorf("without a spec: %+v, %v", s, err)
	}
}

// Of the services without replicas, the MaxResting that stopped last are remembered.
func TestForgotten(t *testing.T) {
	t.Parallel()
	all := map[string]*local.Service{"runs": {Replicas: []local.Replica{{}}}}
	for i := range local.MaxResting + 2 {
		at := time.UnixMilli(int64(1000 - i))
		all[fmt.Sprintf("s%d", i)] = &local.Service{StoppedAt: &at}
	}
	if gone := local.Forgotten(all); !slices.Equal(gone, []string{"s65", "s64"}) {
		t.Errorf("%v are forgotten", gone)
	}
	delete(all, "s64")
	delete(all, "s65")
	if gone := local.Forgotten(all); len(gone) != 0 {
		t.Errorf("%v are forgotten", gone)
	}
}

// If a request has the same manifest with other labels, each replica with this manifest gets the labels, unless it must
// stop.
func TestRelabel(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1e12)
	var s *local.Service
	ask := func(n uint32, cpu int, tier string) map[int]pod.Intent {
		now = now.Add(time.Second)
		r := scale.New("web", n)
		r.Spec = specOf(t, version(cpu, 0, 0))
		r.Spec.Labels = map[string]string{"tier": tier}
		spec, digest, err := local.Read(r)
		if err == nil {
			s, err = local.Take(s, r, spec, digest, nil, now)
		}
		if err != nil {
			t.Fatal(err)
		}
		byIndex := map[int]pod.Intent{}
		for _, in := range s.Intents() {
			byIndex[in.Index] = in
		}
		return byIndex
	}
	first := ask(3, 100, "front")
	same := ask(3, 100, "front")
	if !reflect.DeepEqual(first, same) {
		t.Errorf("the same again: %+v, before %+v", same, first)
	}
	second := ask(2, 100, "back")
	for i := range 2 {
		if in := second[i]; in.Labels["tier"] != "back" || in.Revision <= first[i].Revision ||
			in.Digest != first[i].Digest {
			t.Errorf("%+v after %+v", in, first[i])
		}
	}
	if third := ask(2, 100, "back"); !reflect.DeepEqual(second, third) {
		t.Errorf("%+v, before %+v", third, second)
	}
	waiting := ask(2, 200, "new")
	for i := range 2 {
		if !reflect.DeepEqual(waiting[i], second[i]) {
			t.Errorf("before its turn: %+v, before %+v", waiting[i], second[i])
		}
	}
	if back := ask(2, 100, "old"); back[0].Labels["tier"] != "old" || back[0].Revision <= second[0].Revision {
		t.Errorf("back, with other labels: %+v after %+v", back[0], second[0])
	}
}

// An invalid file is set aside, and the others are read.
func TestDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, err := local.OpenDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	spec, digest, err := local.Read(scale.Request{Service: "web", Spec: specOf(t, version(100, 1, 80))})
	if err != nil {
		t.Fatal(err)
	}
	s, err := local.Take(nil, scale.New("web", 2), spec, digest, nil, time.UnixMilli(7))
	if err == nil {
		err = d.Save(*s)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"half.json":  `{"version":1,`,
		"newer.json": `{"version":2,"service":"newer"}`, "none.json": `{"version":1,"service":"none","digest":"d"}`,
		"x.tmp": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	all, bad, err := d.Load()
	if err != nil || len(bad) != 4 || len(all) != 1 || !reflect.DeepEqual(all[0].Intents(), s.Intents()) {
		t.Errorf("%+v, %v, %v", all, bad, err)
	}
	if all, bad, err := d.Load(); err != nil || len(bad) != 0 || len(all) != 1 {
		t.Errorf("again: %+v, %v, %v", all, bad, err)
	}
	if err := errors.Join(d.Forget("web"), d.Forget("web")); err != nil {
		t.Error(err)
	}
	if all, _, err := d.Load(); err != nil || len(all) != 0 {
		t.Errorf("after it was forgotten: %+v, %v", all, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Load(); err == nil { // because the earlier intents are not known
		t.Error("a disk that gives none of its files counts as empty")
	}
}
