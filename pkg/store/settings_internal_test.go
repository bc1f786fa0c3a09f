package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Invalid settings are not written, two writers at once get one conflict, and unreadable settings can be replaced.
func TestSettings(t *testing.T) {
	t.Parallel()
	st := empty(t)
	if _, err := st.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	none, err := st.PresentSettings(t.Context())
	if err != nil || none.Index != 0 || none.Value.Domain != "" {
		t.Fatalf("%+v, %v", none, err)
	}
	set := func(rec Rec[Settings], domain string) error {
		rec.Value.Domain = domain
		return st.Operator.SetSettings(t.Context(), rec, NewAudit("ann", "set-domain", "", nil))
	}
	if err := set(none, "a.example"); err != nil {
		t.Fatal(err)
	}
	first, err := st.PresentSettings(t.Context())
	if err != nil || first.Value.Domain != "a.example" || first.Value.By != "ann" || first.Value.At.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	if err := set(none, "b.example"); !errors.Is(err, ErrConflict) {
		t.Errorf("who saw none writes over another's: %v", err)
	}
	if err := set(first, "Not.Valid"); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := set(first, ""); err != nil {
		t.Error(err)
	}
	if err := set(first, "b.example"); !errors.Is(err, ErrConflict) {
		t.Errorf("of two at once both wrote: %v", err)
	}
	for _, text := range []string{
		`{"domain":"."}`, `{"domain":"` + strings.Repeat("a", 300) + `"}`, `{"domain":7}`,
		`{"domain":"a\nb"}`, `{"at":"9999-12-31T23:59:59Z"}`, `[]`,
	} {
		write(t, st, consul.Set(st.keys.Settings.Key(), []byte(text)))
		bad, err := st.PresentSettings(t.Context())
		if !IsCorrupt(err) || bad.Index == 0 {
			t.Errorf("%s is read as %+v, %v", text, bad, err)
		}
		bad.Value = Settings{}
		if err := set(bad, "c.example"); err != nil {
			t.Errorf("%s is not replaced: %v", text, err)
		}
	}
}

// Settings have a feature, because a program of an earlier version would ignore them.
func TestSettingsNeedTheirFeature(t *testing.T) {
	t.Parallel()
	if need := feature.NeedOf(Settings{}); need.Name != "domain" {
		t.Errorf("they need %+v", need)
	}
}

// A document that depends on the domain is written only if the settings are unchanged since its plan, also if there
// were none.
func TestADraftDependsOnTheSettings(t *testing.T) {
	t.Parallel()
	st := empty(t)
	if _, err := st.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	draft := func(index *uint64) error {
		one := 1
		spec := record.ServiceSpec{Name: "web", Replicas: &one, Pod: &manifest.Manifest{Version: 1, ID: "web"}}
		d := &record.Draft{
			Service: "web", Settings: index, Deployed: record.Deployed{
				ID: NewID(), Service: "web", Revision: 1,
				RC: "x", Spec: spec,
			},
			Entry: record.Entry{Service: "web", Revision: 1, RC: "x", Spec: spec},
		}
		return st.Deployments.DeployDraft(t.Context(), d, NewAudit("ann", "deploy", "x", nil))
	}
	none := uint64(0)
	if err := st.Operator.SetSettings(t.Context(), Rec[Settings]{Value: Settings{Domain: "a.example"}},
		NewAudit("ann", "set-domain", "", nil)); err != nil {
		t.Fatal(err)
	}
	if err := draft(&none); !errors.Is(err, ErrSettingsChanged) || !errors.Is(err, ErrConflict) {
		t.Errorf("it was planned when there was no domain: %v", err)
	}
	now, err := st.PresentSettings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Operator.SetSettings(t.Context(), now, NewAudit("ben", "set-domain", "", nil)); err != nil {
		t.Fatal(err)
	}
	if err := draft(&now.Index); !errors.Is(err, ErrSettingsChanged) {
		t.Errorf("it was planned under other settings: %v", err)
	}
	if now, err = st.PresentSettings(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := draft(&now.Index); err != nil {
		t.Error(err)
	}
}
