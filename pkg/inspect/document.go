package inspect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// SpecAllowed is what a document of a controller may be, in words.
const SpecAllowed = "one YAML or JSON document that describes a replication controller"

// RCDocument is what rcctl rc get -o yaml prints: the document that makes the controller what it is, for apply, and what only
// rcfarm sets.
type RCDocument struct {
	rc.Spec
	ID             string            `json:"id"`
	State          string            `json:"state"`
	Generation     int64             `json:"generation"`
	ChangedBy      string            `json:"changed_by"`
	DeletedAt      *time.Time        `json:"deleted_at,omitempty"`
	ManifestDigest string            `json:"manifest_digest"`
	GroupManifests map[string]string `json:"group_manifests,omitempty"`
	Status         *StatusView       `json:"status"`
}

// NewRCDocument is the document of a controller that is shown.
func NewRCDocument(r *rc.RC, v *RCView) RCDocument {
	return RCDocument{
		Spec: *rc.SpecOf(r, v.Manifest), ID: v.ID, State: v.State, Generation: v.Generation, ChangedBy: v.ChangedBy,
		DeletedAt: v.DeletedAt, ManifestDigest: v.ManifestDigest, GroupManifests: v.GroupManifests, Status: v.Status,
	}
}

// Text returns the document in YAML, or as JSON, which is YAML too, where YAML would not keep it: it makes 1 of a 1.0 in the
// configuration, and that is another manifest.
func (d *RCDocument) Text() ([]byte, error) {
	plain, err := Indented(d)
	if err != nil {
		return nil, fmt.Errorf("encode output: %w", err)
	}
	text, err := yaml.JSONToYAML(plain)
	if err != nil {
		return nil, fmt.Errorf("encode output: %w", err)
	}
	back, err := document.ToJSON(text, SpecAllowed)
	if err != nil {
		return plain, nil //nolint:nilerr // it cannot be read as YAML
	}
	var read RCDocument
	if err := json.Unmarshal(back, &read); err != nil {
		return plain, nil //nolint:nilerr // it is not the same
	}
	if again, err := Indented(&read); err != nil || !bytes.Equal(again, plain) {
		return plain, err
	}
	return text, nil
}

// defaulted lists what a view of a controller has filled in, as name=value: its document leaves that out or has another. As text it is not met by
// whoever replaces a value in the document.
func defaulted(r *rc.RC, v *RCView) []string {
	all := []string{nameValue("replicas", v.Replicas)} // no record has it besides its groups
	for _, f := range []struct {
		unset bool
		name  string
		value any
	}{
		{r.MinAvailable == nil || v.MinAvailableAsked != nil, "min_available", v.MinAvailable},
		{r.MaxSurge == nil, "max_surge", v.MaxSurge},
		{r.NodeLoss.Action == "", "node_loss.action", v.NodeLoss.Action},
		{r.NodeLoss.After == nil, "node_loss.after", v.NodeLoss.After},
		{r.NodeLoss.UnmanagedAfter == nil, "node_loss.unmanaged_after", v.NodeLoss.UnmanagedAfter},
		{r.ProgressDeadline == nil, "progress_deadline", v.ProgressDeadline},
	} {
		if f.unset {
			all = append(all, nameValue(f.name, f.value))
		}
	}
	return all
}

// nameValue renders a field of plain type. Such a value can be encoded.
func nameValue(name string, value any) string {
	data, _ := json.Marshal(value)
	return name + "=" + strings.Trim(string(data), `"`)
}

// dropDefaulted takes out of a document what is still as it was filled in, in place of what was asked for. What was changed since stays.
func dropDefaulted(s *rc.Spec, filledIn []string, minAsked *int) {
	drop(&s.Replicas, "replicas", filledIn)
	if drop(&s.MinAvailable, "min_available", filledIn); s.MinAvailable == nil {
		s.MinAvailable = minAsked
	}
	drop(&s.MaxSurge, "max_surge", filledIn)
	drop(&s.NodeLoss.After, "node_loss.after", filledIn)
	drop(&s.NodeLoss.UnmanagedAfter, "node_loss.unmanaged_after", filledIn)
	drop(&s.ProgressDeadline, "progress_deadline", filledIn)
	if slices.Contains(filledIn, nameValue("node_loss.action", s.NodeLoss.Action)) {
		s.NodeLoss.Action = ""
	}
}

func drop[T any](value **T, name string, filledIn []string) {
	if *value != nil && slices.Contains(filledIn, nameValue(name, **value)) {
		*value = nil
	}
}

// shownRC is a document as rcctl rc get prints it, in either format: what the user asks for, and the rest.
type shownRC struct {
	rc.Spec
	Manifest  *manifest.Manifest `json:"manifest"` // what -o json calls the pod
	Defaulted []string           `json:"defaulted"`
	// MinAvailableAsked is the minimum that was asked for where there are fewer replicas.
	MinAvailableAsked *int `json:"min_available_asked"`
	ServerFields
}

// ServerFields are those that only rcfarm sets. Whatever is in them is ignored.
type ServerFields struct {
	ID             json.RawMessage `json:"id"`
	State          json.RawMessage `json:"state"`
	Generation     json.RawMessage `json:"generation"`
	ChangedBy      json.RawMessage `json:"changed_by"`
	DeletedAt      json.RawMessage `json:"deleted_at"`
	ManifestDigest json.RawMessage `json:"manifest_digest"`
	GroupManifests json.RawMessage `json:"group_manifests"`
	Status         json.RawMessage `json:"status"`
}

// DecodeShown is rc.DecodeSpec for a document that may be one that rcctl rc get has printed. ignored are the fields of it that no
// document sets. Its errors are field.Errors, or about text that is no JSON.
func DecodeShown(converted []byte) (spec *rc.Spec, ignored []string, err error) {
	var top map[string]json.RawMessage
	if json.Unmarshal(converted, &top) != nil {
		spec, err = rc.DecodeSpec(converted)
		return spec, nil, err
	}
	ignored = slices.DeleteFunc(slices.Sorted(maps.Keys(top)), func(name string) bool { return !slices.Contains(field.Names[ServerFields](), name) })
	if len(ignored) == 0 {
		spec, err = rc.DecodeSpec(converted)
		return spec, nil, err
	}
	var shown shownRC
	if err := field.Decode(converted, &shown); err != nil {
		return nil, nil, err
	}
	if shown.Manifest != nil && shown.Pod != nil {
		return nil, nil, field.Errors{{Field: "manifest", Value: field.Text("manifest together with pod"), Allowed: "one of them; pod is what a document calls it"}}
	}
	shown.Pod = cmp.Or(shown.Pod, shown.Manifest)
	dropDefaulted(&shown.Spec, shown.Defaulted, shown.MinAvailableAsked)
	return &shown.Spec, ignored, shown.Validate().Err()
}

// Indented returns a view as JSON for people.
func Indented(view any) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(view); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}
