package record_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func TestCheckDomain(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 63)
	longest := label + "." + label + "." + label + "." + strings.Repeat("b", record.MaxDomainBytes-3*64)
	for domain, good := range map[string]bool{
		"example": true, "apps.example.org": true, "a-b.xn--bcher-kva.example": true, "1.example": true,
		"10.0.0.a1": true, longest: true,
		longest + "b": false, label + "a.example": false,
		"": false, ".": false, "example.": false, ".example": false, "a..b": false, "Example": false,
		"a_b.example": false, "-a.example": false, "a-.example": false, "bücher.example": false, "a b": false,
		"a\n": false, "10.0.0.1": false, "10": false, "*.example": false, "a/b": false, "${POD}": false,
		"example:80": false,
	} {
		var errs field.Errors
		if record.CheckDomain(&errs, "domain", domain); (len(errs) == 0) != good {
			t.Errorf("%q: %v", domain, errs)
		}
	}
	if !strings.Contains(record.DomainAllowed, fmt.Sprintf(" %d characters", record.MaxDomainBytes)) {
		t.Errorf("%d characters are allowed, and said is %q", record.MaxDomainBytes, record.DomainAllowed)
	}
	host := record.HostOf(strings.Repeat("s", record.MaxNameBytes), longest)
	m := manifest.Manifest{
		Version: 1, ID: "a",
		Launchables: []manifest.Launchable{
			{Name: "a", Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/a"}},
		},
		Service: &manifest.Service{Meta: map[string]string{record.HostMeta: host}},
	}
	if errs := m.Validate(); len(host) != 253 || errs != nil {
		t.Errorf("the longest host name has %d characters: %v", len(host), errs)
	}
}
