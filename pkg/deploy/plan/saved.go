package plan

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// SavedVersion is the format of saved plans, and MaxSavedBytes their greatest size.
const (
	SavedVersion  = 1
	MaxSavedBytes = 8 << 20
)

// Options are the options of a plan in addition to its document.
type Options struct {
	Strategy      string `json:"strategy,omitempty"` // instead of the document's; empty: the document's
	Recreate      bool   `json:"recreate,omitempty"`
	SkipGates     bool   `json:"skip_gates,omitempty"`
	AllowMassStop bool   `json:"allow_mass_stop,omitempty"`
}

// Planner returns a planner with these options.
func (o *Options) Planner(state *State, by string) ServicePlanner {
	return ServicePlanner{
		State: state, By: by,
		Override: o.Strategy, ForceRecreate: o.Recreate, SkipGates: o.SkipGates, MassStop: o.AllowMassStop,
	}
}

// Saved is a plan as a file: its documents with their secrets, and the state from which it was made.
type Saved struct {
	Version  int            `json:"version"`
	By       string         `json:"by"` // who made the plan
	At       time.Time      `json:"at"`
	Options  Options        `json:"options"`
	Services []SavedService `json:"services"`
	// SHA256 is the digest of all other fields. It detects a file that was changed or cut by mistake, and is not a
	// signature.
	SHA256 string `json:"sha256"`
}

// SavedService is the plan of one service.
type SavedService struct {
	Document   record.ServiceSpec `json:"document"` // resolved
	Seen       Seen               `json:"seen"`
	Operations []Line             `json:"operations,omitempty"` // as they were shown
	Warnings   []string           `json:"warnings,omitempty"`
}

// Seen describes the state from which a plan was made. It has digests of the records instead of indices: in a restored
// or copied store, the same content may have other indices, and other content may have the same indices.
type Seen map[string]string

// The keys of Seen, and its values for missing records. The key of a controller ends with its name.
const (
	seenEpoch      = "epoch"
	seenDocument   = "document"
	seenRollout    = "rollout"
	seenDomain     = "domain" // missing if the document does not depend on the domain
	seenController = "controller "
	absent         = "none"
	noDomain       = "(none)" // no domain can have this name
)

// Save returns a file's part for the plan p of the deployment d. domain is nil if the document does not depend on it.
func Save(d *Deployment, p *Plan, epoch string, domain *Domain) SavedService {
	return SavedService{
		Document: d.Spec, Seen: see(d.Service, epoch, domain), Operations: brief(p.Lines()), Warnings: p.Warnings,
	}
}

// brief leaves out the nodes of a line if the next line has the same.
func brief(lines []Line) []Line {
	out := slices.Clone(lines)
	for i := 1; i < len(lines); i++ {
		if w := lines[i].Where; w != nil && reflect.DeepEqual(w, lines[i-1].Where) {
			out[i-1].Where = nil
		}
	}
	return out
}

// OfDomain reports whether the document depends on the cluster's domain.
func (s *SavedService) OfDomain() bool { return s.Seen[seenDomain] != "" }

// Shows reports whether a plan shows the same as the saved one (all), and whether it does apart from nodes (butNodes).
func (s *SavedService) Shows(p *Plan) (all, butNodes bool) {
	saved, now := brief(s.Operations), brief(p.Lines())
	butNodes = slices.Equal(s.Warnings, p.Warnings) && slices.EqualFunc(saved, now, func(a, b Line) bool {
		a.Where, b.Where = nil, nil
		return a == b
	})
	return butNodes && slices.EqualFunc(saved, now, Line.Equal), butNodes
}

// see leaves out what owners report, and controllers that are being deleted.
func see(svc *record.Service, epoch string, domain *Domain) Seen {
	seen := Seen{seenEpoch: epoch, seenDocument: absent, seenRollout: absent}
	if domain != nil {
		seen[seenDomain] = cmp.Or(domain.Name, noDomain)
	}
	if svc == nil {
		return seen
	}
	d := &svc.Deployed
	at := d.At.UTC().Format(time.RFC3339)
	seen[seenDocument] = fmt.Sprintf("revision %d by %s at %s, sha256 %s", d.Revision, d.By, at, digestOf(d))
	if id, state := underWay(svc); id != "" {
		seen[seenRollout] = id + ", " + state
	}
	for _, c := range svc.Others("") {
		r, by := &c.RC, cmp.Or(c.RC.ChangedBy, "(none)")
		text := fmt.Sprintf("generation %d by %s, sha256 %s", r.Generation, by, digestOf(r))
		if svc.Rollout != nil {
			text = "of the rollout" // the rollout changes it all the time
		}
		seen[seenController+r.Name] = text
	}
	return seen
}

func digestOf(record any) string {
	data, _ := json.Marshal(record) // a record is made of plain fields
	return manifest.Digest(data)
}

func (s Seen) changes(now Seen) []string {
	either := maps.Clone(s)
	maps.Copy(either, now)
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(either)) {
		if was, is := cmp.Or(s[key], absent), cmp.Or(now[key], absent); was != is {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s", key, was, is))
		}
	}
	return lines
}

// SavedPlanner plans a saved plan again.
type SavedPlanner struct {
	ServicePlanner
	Saved SavedService
}

// Plan implements Planner. The error is a *StaleError if the state has changed since, or if the new plan would do
// something else. The numbers of pods in the saved plan were a forecast, and may differ.
func (s *SavedPlanner) Plan(
	ctx context.Context, client Client, svc *record.Service, spec *record.ServiceSpec,
) (Plan, error) {
	epoch := ""
	if s.State != nil {
		epoch = s.State.Epoch
	}
	if changes := s.Saved.Seen.changes(see(svc, epoch, s.Domain)); len(changes) > 0 {
		return Plan{}, &StaleError{Service: spec.Name, Changes: changes}
	}
	p, err := s.ServicePlanner.Plan(ctx, client, svc, spec)
	if err != nil {
		return Plan{}, err
	}
	if changes := deeds(s.Saved.Operations).changes(deeds(p.Lines())); len(changes) > 0 {
		return Plan{}, &StaleError{Service: spec.Name, Changes: changes}
	}
	return p, nil
}

// deeds describes a plan's operations, without the operations of owners, as a Seen. It leaves out the text after a
// colon: the numbers of a rollout, which depend on the present pods.
func deeds(lines []Line) Seen {
	all := Seen{}
	for _, l := range lines {
		if what, _, _ := strings.Cut(l.Text, ": "); l.Depth == 0 {
			all[fmt.Sprintf("operation %d", len(all)+1)] = string(l.Sign) + " " + what
		}
	}
	return all
}

// Encode returns the file, without line breaks if it would be too large with them. It fails for a plan that DecodeSaved
// would refuse.
func (s *Saved) Encode() ([]byte, error) {
	s.Version, s.SHA256 = SavedVersion, ""
	s.SHA256 = digestOf(s)
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil && len(data) >= MaxSavedBytes {
		data, err = json.Marshal(s)
	}
	switch {
	case err != nil:
		return nil, err
	case len(data) >= MaxSavedBytes:
		return nil, fmt.Errorf("it takes %d bytes, and a saved plan may have %d: save plans of fewer services each",
			len(data), MaxSavedBytes)
	}
	if _, err := DecodeSaved(data); err != nil {
		return nil, fmt.Errorf("it could not be read again: %w", err)
	}
	return append(data, '\n'), nil
}

// DecodeSaved returns mistakes as field.Errors.
func DecodeSaved(data []byte) (*Saved, error) {
	var errs field.Errors
	if len(data) > MaxSavedBytes {
		errs.Add("plan", field.Text("a larger size"), fmt.Sprintf("at most %d bytes", MaxSavedBytes))
		return nil, errs
	}
	var of struct {
		Version *int `json:"version"`
	}
	switch err := json.Unmarshal(data, &of); {
	case err != nil: // reported below
	case of.Version == nil:
		errs.Missing("version", fmt.Sprint(SavedVersion))
		return nil, errs
	case *of.Version != SavedVersion: // it may have other fields
		errs.Add("version", *of.Version, fmt.Sprintf("%d; make the plan again with this rcctl", SavedVersion))
		return nil, errs
	}
	s, err := field.Read[Saved](data)
	if err != nil {
		return nil, err
	}
	plain := *s
	plain.SHA256 = ""
	if sum := digestOf(&plain); sum != s.SHA256 {
		errs.Add("sha256", s.SHA256, "that of the plan as it was saved; the file was changed since")
		return nil, errs
	}
	return s, nil
}

const (
	maxBy    = 1024
	maxText  = 16 << 10
	maxDepth = 8
)

// Validate reports mistakes in a saved plan.
func (s *Saved) Validate() field.Errors {
	var errs field.Errors
	errs.CheckBytes("by", s.By, maxBy)
	errs.CheckTime("at", s.At)
	if s.Options.Strategy != "" {
		field.CheckOneOf(&errs, "options.strategy", s.Options.Strategy, rollout.StrategyNames()...)
	}
	if len(s.Services) == 0 {
		errs.Missing("services", "at least one service")
	}
	names := map[string]bool{}
	for i := range s.Services {
		path, one := fmt.Sprintf("services[%d]", i), &s.Services[i]
		errs.Nest(path, one.validate())
		if name := one.Document.Name; name != "" && names[name] {
			errs.Add(path+".document.name", name, "a name that no other service of the plan has")
		}
		names[one.Document.Name] = true
	}
	return errs
}

func (s *SavedService) validate() field.Errors {
	var errs field.Errors
	errs.Nest("document", s.Document.Validate())
	if s.Document.Name == "" {
		errs.Missing("document.name", field.NameAllowed)
	}
	if s.Document.Pod != nil && record.Unpinned(s.Document.Pod) {
		errs.Add("document.pod.launchables", field.Text("an artifact without its digest"), "a digest for each artifact")
	}
	for _, key := range []string{seenEpoch, seenDocument, seenRollout} {
		if s.Seen[key] == "" {
			errs.Missing("seen."+key, "what the plan was made on")
		}
	}
	if epoch := s.Seen[seenEpoch]; epoch != "" && !field.IsULID(epoch) {
		errs.Add("seen."+seenEpoch, epoch, "a ULID in lower case")
	}
	if domain := s.Seen[seenDomain]; domain != "" && domain != noDomain {
		record.CheckDomain(&errs, "seen."+seenDomain, domain)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Seen)) {
		if name, of := strings.CutPrefix(key, seenController); of && field.IsName(name) {
			errs.CheckBytes("seen."+key, s.Seen[key], maxText)
		} else if !slices.Contains([]string{seenEpoch, seenDocument, seenRollout, seenDomain}, key) {
			errs.Add("seen."+key, s.Seen[key], "epoch, document, rollout, domain and controllers by their names")
		}
	}
	for i, l := range s.Operations {
		path := fmt.Sprintf("operations[%d].", i)
		field.CheckOneOf(&errs, path+"sign", l.Sign, Added, Removed, Changed, Replaced)
		field.CheckRange(&errs, path+"depth", l.Depth, 0, maxDepth)
		errs.CheckBytes(path+"what", l.Text, maxText)
		if l.Where != nil {
			l.Where.check(&errs, path+"where.")
		}
	}
	for i, warning := range s.Warnings {
		errs.CheckBytes(fmt.Sprintf("warnings[%d]", i), warning, maxText)
	}
	return errs
}
