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

// SpecAllowed describes the document of a controller in errors.
const SpecAllowed = "one YAML or JSON document that describes a replication controller"

// RCDocument is the output of rcctl rc get -o yaml, which rcctl apply accepts.
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

// NewRCDocument returns the document of a controller.
func NewRCDocument(r *rc.RC, v *RCView) RCDocument {
	return RCDocument{
		Spec: *rc.SpecOf(r, v.Manifest), ID: v.ID, State: v.State, Generation: v.Generation, ChangedBy: v.ChangedBy,
		DeletedAt: v.DeletedAt, ManifestDigest: v.ManifestDigest, GroupManifests: v.GroupManifests, Status: v.Status,
	}
}

// Text returns the document in YAML, or in JSON if YAML would change the document. For example, YAML makes 1.0 in a
// configuration 1, which is another manifest.
func (r *RCDocument) Text() ([]byte, error) {
	plain, err := Indented(r)
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

// defaulted lists the fields that no document has set, as name=value. People edit values in a printed document, but not
// this list, so dropDefaulted finds the edited values.
func defaulted(r *rc.RC, v *RCView) []string {
	all := []string{nameValue("replicas", v.Replicas)} // records have only the counts of groups
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

// nameValue takes a value of a plain type, which can always be encoded.
func nameValue(name string, value any) string {
	data, _ := json.Marshal(value)
	return name + "=" + strings.Trim(string(data), `"`)
}

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

type shownRC struct {
	rc.Spec
	Manifest  *manifest.Manifest `json:"manifest"` // the pod, in the output of -o json
	Defaulted []string           `json:"defaulted"`
	// the minimum in the document, if it is higher than the number of replicas
	MinAvailableAsked *int `json:"min_available_asked"`
	ServerFields
}

// ServerFields are the fields that only rcfarm sets.
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

// DecodeShown is rc.DecodeSpec for a document that rcctl rc get may have printed. ignored has its ServerFields. An
// error is a field.Errors, unless the text is not JSON.
func DecodeShown(converted []byte) (spec *rc.Spec, ignored []string, err error) {
	var top map[string]json.RawMessage
	if json.Unmarshal(converted, &top) != nil {
		spec, err = rc.DecodeSpec(converted)
		return spec, nil, err
	}
	ignored = slices.DeleteFunc(slices.Sorted(maps.Keys(top)), func(name string) bool {
		return !slices.Contains(field.Names[ServerFields](), name)
	})
	if len(ignored) == 0 {
		spec, err = rc.DecodeSpec(converted)
		return spec, nil, err
	}
	var shown shownRC
	if err := field.Decode(converted, &shown); err != nil {
		return nil, nil, err
	}
	if shown.Manifest != nil && shown.Pod != nil {
		return nil, nil, field.Errors{{
			Field: "manifest", Value: field.Text("manifest together with pod"),
			Allowed: "one of them; documents use pod",
		}}
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
