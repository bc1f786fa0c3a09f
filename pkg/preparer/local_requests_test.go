package preparer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/local"
	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

func (b *bench) leaveResting(n int) {
	b.t.Helper()
	files, err := local.OpenDisk(filepath.Join(b.cfg.Dir, "local"))
	for i := range n {
		m := b.sleeper("1")
		m.ID = fmt.Sprintf("old-%d", i)
		spec := b.specOf(m)
		var next *local.Service
		r := scale.New(m.ID, 0).WithSpec(spec)
		read, digest, readErr := local.Read(r)
		if err = errors.Join(err, readErr); err == nil {
			next, err = local.Take(nil, r, read, digest, nil, time.UnixMilli(int64(1000+i)))
		}
		if err == nil {
			err = files.Save(*next)
		}
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// A request with other labels and the same manifest changes the records of all replicas, and restarts no process.
func TestNewLabelsOfALocalServiceRestartNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	b.awaitServing()
	one := b.sleeper("1")
	a.must(t, scale.New("web", 2).WithSpec(b.specOf(one)))
	first := b.awaitLocal("web", 0, one)
	b.awaitLocal("web", 1, one)
	before := b.alive("web")
	labelled := b.specOf(one)
	labelled.Labels = map[string]string{"tier": "front"}
	a.must(t, scale.New("web", 2).WithSpec(labelled))
	for i := range 2 {
		b.eventually(func() error {
			r, err := b.localReality(localPod("web", i))
			if err == nil && (r.Revision <= first.Revision || !r.Available) {
				err = fmt.Errorf("reality %+v", r)
			}
			return err
		})
		var rec preparer.Record
		data, err := os.ReadFile(filepath.Join(b.cfg.Dir, "pods", fmt.Sprintf("local-web.main.%d.json", i)))
		if err == nil {
			err = json.Unmarshal(data, &rec)
		}
		if err != nil || rec.Intent.Labels["tier"] != "front" {
			t.Errorf("the record of replica %d has %+v, %v", i, rec.Intent, err)
		}
	}
	if now := b.alive("web"); !maps.Equal(now, before) {
		t.Errorf("%v run, before %v", now, before)
	}
}

// A local service that the trust policy does not allow is refused before anything has changed.
func TestLocalServicesNeedASignatureUnderATrustPolicy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.trustOnly("key_ed25519")
	a := b.start()
	b.awaitServing()
	one, two := b.sleeper("1"), b.sleeper("2")
	signed := func(m manifest.Manifest, key string) scale.Request {
		spec := b.specOf(m)
		err := trust.WithKey(t.Context(), "trust/testdata/"+key, "", func(s ssh.Signer) (err error) {
			spec.Signature, err = trust.Sign(spec.Manifest, s)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return scale.New("web", 1).WithSpec(spec)
	}
	a.must(t, signed(one, "key_ed25519"))
	b.awaitLocal("web", 0, one)
	file := filepath.Join(b.cfg.Dir, "local", "web.json")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	stolen := signed(one, "key_ed25519")
	stolen.Spec.Manifest = b.specOf(two).Manifest
	for name, r := range map[string]scale.Request{
		"unsigned": scale.New("web", 1).WithSpec(b.specOf(two)), "another's": signed(two, "key_rsa"),
		"of another manifest": stolen,
	} {
		if err := a.ask(t, r); !errors.Is(err, scale.ErrInvalid) || !strings.Contains(err.Error(), "trust policy") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, before) {
		t.Errorf("after the refused requests: %s, %v", now, err)
	}
	a.must(t, signed(two, "key_ed25519"))
	b.awaitLocal("web", 0, two)
}

// Concurrent requests are carried out one by one. The highest revision wins in any order, and each accepted request has
// reserved its capacity.
func TestTheLatestOfConcurrentLocalRequestsWins(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.Node.Capacity = node.Capacity{Slots: 8}
	a := b.start()
	b.awaitServing()
	spec := b.specOf(b.sleeper("1"))
	a.must(t, scale.New("web", 1).WithSpec(spec))
	const requests = 8
	var all errgroup.Group
	for i := range requests {
		all.Go(func() error {
			r := scale.New("web", uint32(1+i%4)).WithSpec(spec)
			r.Revision = int64(i + 1)
			err := a.ask(t, r)
			if errors.Is(err, scale.ErrConflict) && strings.Contains(err.Error(), "older than") &&
				r.Revision < requests {
				return nil
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	var s local.Service
	data, err := os.ReadFile(filepath.Join(b.cfg.Dir, "local", "web.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil || s.Revision != requests || s.Running() != 4 {
		t.Errorf("%s, %v", data, err)
	}
	b.awaitClaims(localPod("web", 0), localPod("web", 1), localPod("web", 2), localPod("web", 3))
}
