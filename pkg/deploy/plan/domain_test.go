package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

func hosted(host string) string { return `pod.service={"meta": {"host": "` + host + `"}}` }

// If the cluster's domain has changed a host name, the plan shows this, and depends on the domain. It warns if nothing
// else is different. It depends on no domain if the document has a host name, or if the host name does not change.
func TestPlansShowWhatTheDomainChanges(t *testing.T) {
	t.Parallel()
	const recreated = "a pod's manifest never changes while it runs"
	for name, tt := range map[string]struct {
		domain  *plan.Domain
		changes []string
		why     string
		warning string // empty: none about the domain
	}{
		"another domain": {
			&plan.Domain{Name: "new.example", Index: 7},
			[]string{hosted("web.new.example")},
			"it follows the cluster's domain: " +
				recreated, "its pods change because the cluster's domain is new.example now",
		},
		"in place": {
			&plan.Domain{Name: "new.example", Index: 7},
			[]string{hosted("web.new.example"), `update.strategy="in-place"`},
			"it follows the cluster's domain: the pods are upgraded where they are", "",
		},
		"no domain any more": {
			&plan.Domain{},
			[]string{},
			"the cluster has no domain: " + recreated,
			"its pods change because the cluster has no domain now",
		},
		"more besides": {
			&plan.Domain{Name: "new.example"},
			[]string{hosted("web.new.example"), newManifest},
			"it follows the cluster's domain: " + recreated, "",
		},
		"by the document": {nil, []string{hosted("own.example")}, recreated, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cluster{}
			c.deployed(t, sample(t, hosted("web.old.example")))
			d := deployment(t, c, tt.changes...)
			d.Planner.(*plan.ServicePlanner).Domain = tt.domain
			p, err := d.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(p.Change.Fields, func(f plan.FieldChange) bool {
				return f.Path == "pod.service.meta.host"
			})
			if i < 0 || p.Change.Fields[i].Why != tt.why {
				t.Errorf("the fields are %+v, want one because %q", p.Change.Fields, tt.why)
			}
			if warned := strings.Join(p.Warnings, "\n"); tt.warning == "" && strings.Contains(warned, "domain") ||
				!strings.Contains(warned, tt.warning) {
				t.Errorf("it warns %q, want %q", warned, tt.warning)
			}
			switch depends := c.commits[len(c.commits)-1].Settings; {
			case tt.domain == nil && depends != nil, tt.domain != nil &&
				(depends == nil || *depends != tt.domain.Index):
				t.Errorf("it depends on %v, want %+v", depends, tt.domain)
			}
		})
	}
}

// A saved plan is refused if the domain is not the one with which it was made, or if there was or is none.
func TestASavedPlanIsOfItsDomain(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	for _, tt := range []struct{ saved, now, says string }{
		{"a.example", "a.example", ""},
		{"", "", ""},
		{"a.example", "b.example", "domain: a.example -> b.example"},
		{"a.example", "", "domain: a.example -> (none)"},
		{"", "none", "domain: (none) -> none"},
	} {
		of := func(name string) *plan.ServicePlanner {
			r := rolling()
			r.State, r.Domain = withRoom(oneEpoch), &plan.Domain{Name: name}
			return r
		}
		spec := *sample(t, hosted(record.HostOf("web", tt.saved)))
		d := plan.NewDeployment(c, spec, of(tt.saved))
		p, err := d.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		saved := plan.Saved{
			By: "ann", At: when, Services: []plan.SavedService{plan.Save(d, &p, oneEpoch, of(tt.saved).Domain)},
		}
		data, err := saved.Encode()
		if err != nil {
			t.Fatal(err)
		}
		read, err := plan.DecodeSaved(data)
		if err != nil || !read.Services[0].OfDomain() {
			t.Fatalf("%+v, %v", read, err)
		}
		_, err = plan.NewDeployment(c, spec,
			&plan.SavedPlanner{ServicePlanner: *of(tt.now), Saved: read.Services[0]}).Plan(t.Context())
		stale, is := errors.AsType[*plan.StaleError](err)
		if is != (tt.says != "") || is && !slices.Contains(stale.Changes, tt.says) {
			t.Errorf("made under %q and carried out under %q: %v", tt.saved, tt.now, err)
		}
		saved.Services[0].Seen["domain"] = "Not.One"
		if _, err := saved.Encode(); err == nil {
			t.Error("a file with a domain that is none is read")
		}
	}
}
