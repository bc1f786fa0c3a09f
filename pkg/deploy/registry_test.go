package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/imagetest"
)

// deployed is a document of a service with an image, and the digests that manifests in Consul have.
type deployed struct {
	*deploy.Source
	known map[string]string
}

// resolve returns the ref with which the document would be deployed, and deploys it.
func (d *deployed) resolve(t *testing.T, ref, digests string) (string, error) {
	t.Helper()
	spec, err := record.Decode(fmt.Appendf(nil, `{"name":"web","replicas":1%s,"pod":{"version":1,"id":"web",`+
		`"launchables":[{"name":"web","artifact":{"kind":"image","ref":%q}}]}}`, digests, ref))
	if err != nil {
		t.Fatal(err)
	}
	resolver := plan.ServiceSpecResolver{Digests: &plan.DigestResolver{
		Source: d.Source, Known: func(context.Context) (map[string]string, error) { return d.known, nil },
	}}
	got, err := resolver.Resolve(t.Context(), spec)
	if err != nil {
		return "", err
	}
	if errs := got.Pod.Validate(); errs != nil {
		t.Error(errs)
	}
	d.known = record.DigestsOf(got.Pod)
	return got.Pod.Launchables[0].Artifact.Ref, nil
}

const (
	always  = `,"digests":"always"`
	missing = `,"digests":"missing"`
	never   = `,"digests":"never"`
)

func newDeployed(reg *imagetest.Registry) *deployed {
	return &deployed{Source: &deploy.Source{Registries: deploy.Registries{PlainHTTP: []string{reg.Host}}}}
}

// The three policies, with a tag that moves. An index of several platforms is pinned as such.
func TestDigestsOfImages(t *testing.T) {
	t.Parallel()
	reg := imagetest.New(t)
	first := reg.Push(t, "team/web", imagetest.Image{})
	second := reg.PushIndex(t, "team/web", reg.Of("team/web", first, "linux", "amd64", ""))
	reg.Tag("team/web", "1.2", first)
	ref := reg.Host + "/team/web:1.2"
	d := newDeployed(reg)
	_, err := d.resolve(t, ref, never)
	if err == nil || !strings.Contains(err.Error(), "artifact "+ref+": no service has") {
		t.Errorf("never, and not known: %v", err)
	}
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("never asked %q", got)
	}
	steps := []struct {
		digests, tag, want string
		asks               int
	}{
		{missing, first, first, 1},
		{missing, second, first, 0},
		{never, second, first, 0},
		{always, first, first, 1},
		{always, second, second, 1},
		{"", first, first, 1},
		{never, second, first, 0},
	}
	for i, step := range steps {
		reg.Tag("team/web", "1.2", step.tag)
		got, err := d.resolve(t, ref, step.digests)
		if err != nil || got != ref+"@"+step.want {
			t.Errorf("step %d: got %s, %v; want %s", i, got, err, step.want)
		}
		asked := reg.Requests()
		if len(asked) != step.asks || step.asks > 0 && asked[0] != "HEAD /v2/team/web/manifests/1.2" {
			t.Errorf("step %d asked %q", i, asked)
		}
	}
	for _, pinned := range []string{ref + "@" + first, reg.Host + "/team/web@" + first} {
		if got, err := d.resolve(t, pinned, always); err != nil || got != pinned {
			t.Errorf("%s became %s, %v", pinned, got, err)
		}
	}
	if asked := reg.Requests(); len(asked) != 0 {
		t.Errorf("refs with a digest asked %q", asked)
	}
}

// Errors name the ref.
func TestDigestsOfImagesThatCannotBeFound(t *testing.T) {
	t.Parallel()
	reg := imagetest.New(t)
	ref := reg.Host + "/team/web:1.2"
	d := newDeployed(reg)
	check := func(name, want string, is error) {
		t.Helper()
		_, err := d.resolve(t, ref, "")
		var source *plan.SourceError
		if !errors.As(err, &source) || !strings.Contains(err.Error(), ref) || !strings.Contains(err.Error(), want) ||
			is != nil && !errors.Is(err, is) {
			t.Errorf("%s: %v", name, err)
		}
	}
	check("no such tag", "the registry does not have it", nil)
	reg.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	check("401", "with these credentials", deploy.ErrDenied)
	d.Registries.DockerConfig = filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(d.Registries.DockerConfig, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a bad file of credentials", "read credentials", nil)
	d.Registries.DockerConfig = ""
	reg.Server.Close()
	check("away", "connection refused", nil)
	if got, err := d.resolve(t, ref+"@sha256:"+strings.Repeat("a", 64), ""); err != nil {
		t.Errorf("a pinned ref needs no registry: %s, %v", got, err)
	}
}

// Credentials of Docker's config.json are sent.
func TestDigestsOfPrivateImages(t *testing.T) {
	t.Parallel()
	reg := imagetest.New(t)
	digest := reg.Push(t, "web", imagetest.Image{})
	reg.Tag("web", "1", digest)
	reg.Before(func(w http.ResponseWriter, req *http.Request) bool {
		if user, password, _ := req.BasicAuth(); user == "me" && password == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	d := newDeployed(reg)
	d.Registries.DockerConfig = filepath.Join(t.TempDir(), "config.json")
	config := fmt.Sprintf(`{"auths":{%q:{"auth":"bWU6c2VjcmV0"}}}`, reg.Host)
	if err := os.WriteFile(d.Registries.DockerConfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ref := reg.Host + "/web:1"
	if got, err := d.resolve(t, ref, ""); err != nil || got != ref+"@"+digest {
		t.Errorf("got %s, %v", got, err)
	}
}
