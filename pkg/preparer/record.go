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

// keepVersions is how many versions of a pod stay installed, the one that runs included.
const keepVersions = 3

// RecordVersion is the only format of local records that this build reads and writes.
const RecordVersion = 1

// Record is what the node keeps on its own disk about one identity: enough to run it with Consul gone, and to refuse,
// for ever, what is older than what was done already.
type Record struct {
	Version int `json:"version"`
	// Intent is the last accepted one. Its revision is the highest that was applied.
	Intent pod.Intent `json:"intent"`
	// Wanted is the manifest of Intent in canonical JSON, from the time it was read until it is installed.
	Wanted json.RawMessage `json:"wanted,omitempty"`
	// Signature is the one that Wanted came with, so that the node can ask again whether it counts.
	Signature string `json:"signature,omitempty"`
	// Installed is what runs, or shall run again after a reboot; nil when nothing was ever started.
	Installed *install.Installed `json:"installed,omitempty"`
	// Previous are earlier versions that stay installed, the newest first.
	Previous []install.Installed `json:"previous,omitempty"`
	// StoppedAt makes the record a tombstone: since then nothing of the pod runs.
	StoppedAt *time.Time `json:"stopped_at,omitempty"`
	// StoppedMoment is StoppedAt by the clock that nobody sets; nil in records of versions before.
	StoppedMoment *proc.Moment `json:"stopped_moment,omitempty"`
	// Service is the fingerprint of the service as last registered, so that a restarted preparer does not register it
	// again, which would make its check start over.
	Service string `json:"service,omitempty"`
	// Standby: the pod was last seen out of its service's name.
	Standby bool `json:"standby,omitempty"`
	// Ready is the fingerprint of the processes that have been available, so that a restarted preparer need not wait
	// for min_ready again.
	Ready string `json:"ready,omitempty"`
	// Counting is since when min_ready is counted, so that a restarted preparer goes on with it.
	Counting *Counting `json:"counting,omitempty"`
	// NeverAvailable: the pod has not been available since it began with nothing on the node. Records of versions before
	// do not say.
	NeverAvailable bool `json:"never_available,omitempty"`
	// DataOwner is the id of the pod whose user, home and volumes these are, for as long as the record stays; empty before the
	// first manifest was read.
	DataOwner string `json:"tenant,omitempty"`
	// AwaitsIntent: it was stopped because the node's name was taken over, and does not start before its intent was read again.
	AwaitsIntent bool `json:"awaits_intent,omitempty"`
	// Ran are the digests of versions that run once and were started, the latest last. They stay when the pod is stopped.
	Ran []string `json:"ran,omitempty"`
	// UID is the number that the pod has as a user and as a group, for as long as the record stays; zero: none.
	UID int `json:"uid,omitempty"`
}

// accept returns the record after a newer intent was accepted.
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

// buried returns the record as a tombstone. An earlier burial keeps its time.
func (r Record) buried(now instant) Record {
	r.Wanted, r.Signature, r.Installed, r.Previous, r.Service, r.Ready, r.Counting, r.AwaitsIntent = nil, "", nil, nil, "", "", nil, false
	if r.StoppedAt == nil {
		r = r.stoppedAt(now)
	}
	return r
}

// local is the part of the record that decisions are made from.
func (r *Record) local() Local {
	return Local{Revision: r.Intent.Revision, Stop: r.Intent.State == pod.Stopped, Stopped: r.StoppedAt != nil}
}

// upToDate reports whether what is installed is what the accepted intent asks for.
func (r *Record) upToDate() bool {
	return r.Installed != nil && r.Installed.Digest == r.Intent.Digest
}

// wasReady reports whether processes of the installed version have been available, as far as the record remembers.
func (r *Record) wasReady() bool {
	return strings.Contains(r.Ready, fmt.Sprintf(".%s.%d:", install.Short(r.Installed.Made()), r.Installed.Revision))
}

// installed returns the record with a new version of a pod in it. The one before it and others stay, so many as are kept.
func (r Record) installed(in *install.Installed, podID string) Record {
	if r.Installed != nil {
		r.Previous = append([]install.Installed{*r.Installed}, r.Previous...)
		r.Previous = r.Previous[:min(len(r.Previous), keepVersions-1)]
	}
	r.Installed, r.Wanted, r.Signature, r.DataOwner = in, nil, "", podID
	return r
}

// relimited returns the record with other limits of what is installed, and of what runs. A version that runs once has
// run then.
func (r Record) relimited(in *install.Installed) Record {
	r.Installed, r.Wanted, r.Signature = in, nil, ""
	if m := in.Decode(); m != nil && m.RunsOnce() {
		r = r.ran(in.Digest)
	}
	return r
}

// versions are all that stay installed, the newest first.
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

// live are the versions of which processes may run: what is installed last and, until that has been available, the one before it. Those before are kept to go back to.
func (r *Record) live() []*install.Installed {
	all := r.versions()
	if r.Installed != nil && r.wasReady() {
		return all[:1]
	}
	return all[:min(len(all), 2)]
}

// dataOwner returns the id of the pod that the identity's user and directories are of, as far as the record tells.
func (r *Record) dataOwner() string {
	if r.DataOwner != "" {
		return r.DataOwner
	}
	for _, in := range r.versions() { // a record of before it was noted
		if m := in.Decode(); m != nil {
			return m.ID
		}
	}
	return ""
}

// runs returns the digest and ports of what is installed or, before anything is, of what shall be.
func (r *Record) runs() (digest string, ports map[string]int) {
	if r.Installed != nil {
		return r.Installed.Digest, r.Installed.Ports
	}
	return r.Intent.Digest, r.Intent.Ports
}

// maxRan is how many versions that run once are remembered of an identity.
const maxRan = 64

// ran returns the record with a version that runs once noted as started.
func (r Record) ran(digest string) Record {
	if slices.Contains(r.Ran, digest) {
		return r
	}
	all := append(slices.Clone(r.Ran), digest)
	r.Ran = all[max(0, len(all)-maxRan):]
	return r
}

// spent reports whether what is installed runs once, and was started.
func (r *Record) spent() bool {
	m := r.Installed.Decode()
	return m != nil && m.RunsOnce() && slices.Contains(r.Ran, r.Installed.Digest)
}

// Check reports why a record cannot be used.
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

// recovered rebuilds the record of a pod whose file was lost from the processes that the runtime has of it. The
// newest version counts. The manifest stays unknown until it can be read from Consul; until then its processes are left
// exactly as they are.
func recovered(id pod.Identity, procs []runtime.Status) (Record, bool) {
	var newest *runtime.Status
	for i := range procs {
		if procs[i].Phase != runtime.Stopped && procs[i].Phase != runtime.Unknown && (newest == nil || procs[i].Spec.Revision > newest.Spec.Revision) {
			newest = &procs[i]
		}
	}
	if newest == nil {
		return Record{}, false
	}
	said := install.Describe(newest.Spec.Env)
	in := pod.Intent{
		Identity: id, PodID: said.PodID, Digest: said.Digest, Ports: said.Ports,
		State: pod.Running, Revision: newest.Spec.Revision, Replicas: said.Replicas,
	}
	return Record{
		Version: RecordVersion, Intent: in, DataOwner: in.PodID,
		Installed: &install.Installed{Digest: in.Digest, Revision: in.Revision, Ports: maps.Clone(said.Ports), Replicas: said.Replicas},
	}, in.Check() == nil
}
