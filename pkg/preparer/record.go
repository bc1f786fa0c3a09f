package preparer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// keepVersions includes the version that runs.
const keepVersions = 3

// RecordVersion is the only format of local records that this build reads and writes.
const RecordVersion = 1

// Record is the node's own record of one identity, on its disk. It lets the pod run without Consul, and the node refuse
// an intent that is older than the accepted one.
type Record struct {
	Version int `json:"version"`
	// Intent is the last accepted intent. Its revision is the highest that the node has applied.
	Intent pod.Intent `json:"intent"`
	// Wanted is the manifest of Intent in canonical JSON, until it is installed.
	Wanted json.RawMessage `json:"wanted,omitempty"`
	// Signature is of Wanted, so that the node can check its policy again.
	Signature string `json:"signature,omitempty"`
	// Installed is the version that runs, or that must run again after a reboot; nil: none.
	Installed *install.Installed `json:"installed,omitempty"`
	// Previous has the earlier installed versions, the newest first.
	Previous []install.Installed `json:"previous,omitempty"`
	// StoppedAt is since when no process of the pod runs. It makes the record a tombstone.
	StoppedAt *time.Time `json:"stopped_at,omitempty"`
	// StoppedMoment is the same time on the clock that cannot be set; nil in records of earlier releases.
	StoppedMoment *proc.Moment `json:"stopped_moment,omitempty"`
	// Service is the fingerprint of the registered service. A restarted preparer does not register it again, because
	// the check would start over.
	Service string `json:"service,omitempty"`
	// Standby: the pod was last registered as <name>-standby.
	Standby bool `json:"standby,omitempty"`
	// Ready is the fingerprint of the processes that have been available, so that min_ready is not waited for again.
	Ready string `json:"ready,omitempty"`
	// Counting is the start of the count of min_ready, which a restarted preparer continues.
	Counting *Counting `json:"counting,omitempty"`
	// NeverAvailable: the pod has not been available since it began with nothing on the node. Earlier releases lack it.
	NeverAvailable bool `json:"never_available,omitempty"`
	// DataOwner is the pod id that owns user, home and volumes, for the life of the record. It is empty until the first
	// manifest was read.
	DataOwner string `json:"tenant,omitempty"`
	// AwaitsIntent: the pod was stopped because the node's name was taken over, and waits until its intent is read
	// again.
	AwaitsIntent bool `json:"awaits_intent,omitempty"`
	// Ran has the digests of versions that run at most once and were started, the latest last. A stop does not clear
	// it.
	Ran []string `json:"ran,omitempty"`
	// UID is the number of the pod's user and group, for the life of the record; zero: none.
	UID int `json:"uid,omitempty"`
}

func (r Record) accept(in pod.Intent) Record {
	if in.Digest != r.Intent.Digest {
		r.Wanted, r.Signature = nil, ""
	}
	if in.State == pod.Running && r.Installed == nil && (r.Version == 0 || r.StoppedAt != nil) {
		r.NeverAvailable = true
	}
	r.Version, r.Intent = RecordVersion, in
	if in.State == pod.Running {
		r.StoppedAt, r.StoppedMoment = nil, nil
	}
	return r
}

// buried returns the record as a tombstone, which keeps the time of its stop.
func (r Record) buried(now instant) Record {
	r.Wanted, r.Signature, r.Installed, r.Previous = nil, "", nil, nil
	r.Service, r.Ready, r.Counting, r.AwaitsIntent = "", "", nil, false
	if r.StoppedAt == nil {
		r = r.stoppedAt(now)
	}
	return r
}

func (r *Record) local() Local {
	return Local{Revision: r.Intent.Revision, Stop: r.Intent.State == pod.Stopped, Stopped: r.StoppedAt != nil}
}

func (r *Record) upToDate() bool {
	return r.Installed != nil && r.Installed.Digest == r.Intent.Digest
}

// wasReady reports whether processes of the installed version have been available.
func (r *Record) wasReady() bool {
	return strings.Contains(r.Ready, fmt.Sprintf(".%s.%d:", install.Short(r.Installed.Made()), r.Installed.Revision))
}

func (r Record) installed(in *install.Installed, podID string) Record {
	if r.Installed != nil {
		r.Previous = append([]install.Installed{*r.Installed}, r.Previous...)
		r.Previous = r.Previous[:min(len(r.Previous), keepVersions-1)]
	}
	r.Installed, r.Wanted, r.Signature, r.DataOwner = in, nil, "", podID
	return r
}

// relimited returns the record with the installed version after a change of limits. A version that runs at most once is
// added to Ran, because its processes run already.
func (r Record) relimited(in *install.Installed) Record {
	r.Installed, r.Wanted, r.Signature = in, nil, ""
	if m := in.Decode(); m != nil && m.RunsOnce() {
		r = r.ran(in.Digest)
	}
	return r
}

// versions returns the newest first.
func (r *Record) versions() []*install.Installed {
	var all []*install.Installed
	if r.Installed != nil {
		all = append(all, r.Installed)
	}
	for i := range r.Previous {
		all = append(all, &r.Previous[i])
	}
	return all
}

// live returns the versions that may have running processes: the newest and, until that has been available, the one
// before.
func (r *Record) live() []*install.Installed {
	all := r.versions()
	if r.Installed != nil && r.wasReady() {
		return all[:1]
	}
	return all[:min(len(all), 2)]
}

// dataOwner returns the pod id that owns the identity's user and directories; empty: not known.
func (r *Record) dataOwner() string {
	if r.DataOwner != "" {
		return r.DataOwner
	}
	for _, in := range r.versions() { // records of earlier releases lack DataOwner
		if m := in.Decode(); m != nil {
			return m.ID
		}
	}
	return ""
}

// runs returns digest and ports of the installed version, or else of the accepted intent.
func (r *Record) runs() (digest string, ports map[string]int) {
	if r.Installed != nil {
		return r.Installed.Digest, r.Installed.Ports
	}
	return r.Intent.Digest, r.Intent.Ports
}

// launchBegun notes in the installed version that its hooks after_launch and enable have not ended yet.
func (r Record) launchBegun() Record { return r.withLaunching(true) }

// launchEnded notes that these hooks have ended.
func (r Record) launchEnded() Record { return r.withLaunching(false) }

func (r Record) withLaunching(launching bool) Record {
	installed := *r.Installed
	installed.Launching = launching
	r.Installed = &installed
	return r
}

const maxRan = 64

func (r Record) ran(digest string) Record {
	if slices.Contains(r.Ran, digest) {
		return r
	}
	all := append(slices.Clone(r.Ran), digest)
	r.Ran = all[max(0, len(all)-maxRan):]
	return r
}

func (r *Record) spent() bool {
	m := r.Installed.Decode()
	return m != nil && m.RunsOnce() && slices.Contains(r.Ran, r.Installed.Digest)
}

// Check returns why a record is invalid, or nil.
func (r *Record) Check() error {
	if r.Version != RecordVersion {
		return fmt.Errorf("format version %d; this build knows version %d", r.Version, RecordVersion)
	}
	if err := r.Intent.Check(); err != nil {
		return err
	}
	for _, in := range r.versions() {
		if !manifest.IsDigest(in.Digest) || in.Revision < 1 {
			return fmt.Errorf("installed digest %q at revision %d", in.Digest, in.Revision)
		}
		if in.MadeAs != "" && !manifest.IsDigest(in.MadeAs) {
			return fmt.Errorf("digest %s was installed as %q", in.Digest, in.MadeAs)
		}
		if in.Manifest != nil && in.Decode() == nil {
			return fmt.Errorf("the manifest of digest %s cannot be read", in.Digest)
		}
	}
	return nil
}

// recovered rebuilds a lost record from the newest version of the pod's processes. The manifest is unknown until it is
// read from Consul.
func recovered(id pod.Identity, procs []runtime.Status) (Record, bool) {
	var newest *runtime.Status
	for i := range procs {
		phase := procs[i].Phase
		if phase != runtime.Stopped && phase != runtime.Unknown &&
			(newest == nil || procs[i].Spec.Revision > newest.Spec.Revision) {
			newest = &procs[i]
		}
	}
	if newest == nil {
		return Record{}, false
	}
	env := install.Describe(newest.Spec.Env)
	in := pod.Intent{
		Identity: id, PodID: env.PodID, Digest: env.Digest, Ports: env.Ports,
		State: pod.Running, Revision: newest.Spec.Revision, Replicas: env.Replicas,
	}
	return Record{
		Version: RecordVersion, Intent: in, DataOwner: in.PodID,
		Installed: &install.Installed{
			Digest: in.Digest, Revision: in.Revision, Ports: maps.Clone(env.Ports), Replicas: env.Replicas,
		},
	}, in.Check() == nil
}
