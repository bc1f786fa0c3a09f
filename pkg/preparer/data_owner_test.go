package preparer_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

func (b *bench) trustAlso(policy string) {
	b.t.Helper()
	text, err := os.ReadFile(policy)
	if err != nil {
		b.t.Fatal(err)
	}
	b.writeFile(policy, strings.Replace(string(text), "pods: [web]", `pods: [web, sandbox]`, 1))
}

func (b *bench) sandbox(version string) manifest.Manifest {
	m := b.sleeper(version)
	m.ID, m.Volumes = "sandbox", []manifest.Volume{{Name: "data"}}
	return m
}

func intentOf(podID, digest string, revision int64) pod.Intent {
	in := intent(0, digest, pod.Running, revision)
	in.PodID = podID
	return in
}

// An intent with another pod id than its manifest is refused, even if the version is installed. The pod runs on under
// its own name.
func TestIntentOfAnotherPodIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest := b.upload(b.pod(`echo "$POD_ID" > "$POD_HOME/pod-id"; exec sleep 1000`, "1"))
	b.write(intentOf("forged", digest, 10))
	b.awaitState(0, pod.StateFailed, 10, `the intent's pod_id is "forged", and manifest `)
	if procs := b.procs(0); len(procs) != 0 {
		t.Errorf("processes %+v", procs)
	}
	b.write(intentOf("web", digest, 11))
	b.awaitReady(0, digest, 11)
	pid := b.pid(0)
	b.write(intentOf("forged", digest, 12))
	b.awaitState(0, pod.StateFailed, 12, `the intent's pod_id is "forged", and manifest `)
	b.mustKeepPID(0, pid)
	b.killAndAwait(0)
	b.eventually(func() error {
		name, err := os.ReadFile(filepath.Join(b.cfg.Dir, "homes", "rc1.main.0", "pod-id"))
		switch {
		case err != nil:
		case len(name) == 0: // the shell has opened the file and not written yet
			err = errors.New("the pod has not written its name yet")
		case string(name) != "web\n":
			t.Errorf("the pod was called %q", name)
		}
		return err
	})
	b.write(intentOf("web", digest, 13))
	b.awaitReady(0, digest, 13)
}

// Under a trust policy, the signer of one pod cannot get the user, home and volumes of another pod by an intent for its
// identity: while that pod runs, after its stop, and after its record was lost.
func TestSignerOfOnePodCannotTakeTheDataOfAnother(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	policy := b.trustOnly("key_ed25519")
	b.trustAlso(policy)
	a := b.start()
	m := b.sleeper("1")
	m.Volumes = []manifest.Volume{{Name: "data"}}
	web, other := b.uploadSigned(m, "key_ed25519"), b.uploadSigned(b.sandbox("1"), "key_ed25519")
	b.write(intentOf("web", web, 10))
	b.awaitReady(0, web, 10)
	pid := b.pid(0)
	const refusal = `user, home and volumes of rc1/main.0 are those of pod "web", ` +
		`and a node with a trust policy does not hand them to pod "sandbox"`
	b.write(intentOf("sandbox", other, 20))
	b.awaitState(0, pod.StateFailed, 20, refusal)
	b.mustKeepPID(0, pid)

	b.write(intent(0, "", pod.Stopped, 30))
	b.awaitState(0, pod.StateStopped, 30, "")
	b.write(intentOf("sandbox", other, 40))
	b.awaitState(0, pod.StateFailed, 40, refusal)

	// Without the record, the file beside the volumes has the owner.
	a.stop()
	record := filepath.Join(b.cfg.Dir, "pods", "rc1.main.0.json")
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	a = b.start()
	b.write(intentOf("sandbox", other, 50))
	b.awaitState(0, pod.StateFailed, 50, refusal)

	// Without both, the owner is not known.
	a.stop()
	note := filepath.Join(b.cfg.Dir, "volumes", "rc1.main.0", ".pod-id")
	for _, file := range []string{record, note} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	a = b.start()
	b.write(intentOf("web", web, 60))
	b.awaitState(
		0, pod.StateFailed, 60, "no record names the pod that owned "+filepath.Join(b.cfg.Dir, "homes", "rc1.main.0"),
	)
	b.writeFile(note, "web\n")
	b.awaitReady(0, web, 60)

	// A record of an earlier release lacks the owner, which then comes from the installed manifest.
	a.stop()
	b.dropOwner(record, note)
	b.start()
	b.write(intentOf("sandbox", other, 70))
	b.awaitState(0, pod.StateFailed, 70, refusal)
	b.write(intentOf("web", web, 80))
	b.awaitReady(0, web, 80)
}

func (b *bench) dropOwner(record, note string) {
	b.t.Helper()
	var rec map[string]any
	data, err := os.ReadFile(record)
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err == nil {
		err = os.Remove(note)
	}
	if err != nil || rec["tenant"] != "web" {
		b.t.Fatalf("data owner %v, %v", rec["tenant"], err)
	}
	delete(rec, "tenant")
	data, err = json.Marshal(rec)
	if err != nil {
		b.t.Fatal(err)
	}
	b.writeFile(record, string(data))
}

// Without a trust policy an identity may become another pod.
func TestIdentityMayBecomeAnotherPodWithoutAPolicy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	web, other := b.upload(b.sleeper("1")), b.upload(b.sandbox("1"))
	b.write(intentOf("web", web, 10))
	b.awaitReady(0, web, 10)
	b.write(intentOf("sandbox", other, 20))
	b.awaitReady(0, other, 20)
	if name, err := os.ReadFile(filepath.Join(b.cfg.Dir, "volumes", "rc1.main.0", ".pod-id")); err != nil ||
		string(name) != "sandbox\n" {
		t.Errorf("the volumes are of %q, %v", name, err)
	}
}
