package plan_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// source has digests by artifact, and counts the calls.
type source struct {
	digests map[string]string
	asked   int
}

func (s *source) Digest(_ context.Context, artifact *manifest.Artifact) (string, error) {
	s.asked++
	if d, ok := s.digests[artifact.Source()]; ok {
		return d, nil
	}
	return "", errors.New("404")
}

func archive(url string) *manifest.Artifact {
	return &manifest.Artifact{Kind: manifest.ArtifactTar, URL: url}
}

func TestDigestResolver(t *testing.T) {
	for _, tt := range []struct {
		artifact string
		policy   record.Policy
		want     string
		asked    int
		err      string
	}{
		{"both", record.Always, "now", 1, ""},
		{"both", record.Missing, "before", 0, ""},
		{"both", "", "before", 0, ""},
		{"both", record.Never, "before", 0, ""},
		{"fresh", record.Always, "now", 1, ""},
		{"fresh", record.Missing, "now", 1, ""},
		{
			"fresh", record.Never, "", 0,
			"artifact fresh: no service has its digest in its history, and with digests: never it is not computed; " +
				"pin its digest, or use digests: missing",
		},
		{"gone", record.Missing, "", 1, "digest of artifact gone: 404"},
	} {
		s := &source{digests: map[string]string{"both": "now", "fresh": "now"}}
		looks := 0
		r := &plan.DigestResolver{Source: s, Known: func(context.Context) (map[string]string, error) {
			looks++
			return map[string]string{"both": "before"}, nil
		}}
		got, err := r.Resolve(t.Context(), archive(tt.artifact), tt.policy)
		if got != tt.want || s.asked != tt.asked || (err == nil) != (tt.err == "") ||
			err != nil && err.Error() != tt.err {
			t.Errorf("%s %s: %q, asked %d times, %v", tt.artifact, tt.policy, got, s.asked, err)
		}
		if looked := looks > 0; looked == (tt.policy == record.Always) {
			t.Errorf("%s %s: %d looks at the history", tt.artifact, tt.policy, looks)
		}
	}
	unread := errors.New("no answer")
	r := plan.DigestResolver{
		Source: &source{}, Known: func(context.Context) (map[string]string, error) { return nil, unread },
	}
	if _, err := r.Resolve(t.Context(), archive("a"), record.Missing); !errors.Is(err, unread) {
		t.Error(err)
	}
	_, err := (&plan.DigestResolver{}).Resolve(t.Context(), archive("a"), record.Never)
	if unknown, is := errors.AsType[*plan.UnknownDigestError](err); !is || unknown.Artifact != "a" {
		t.Errorf("%T %v", err, err)
	}
	_, err = (&plan.DigestResolver{}).Resolve(t.Context(), archive("a"), record.Always)
	if err == nil || err.Error() != "artifact a: there is no source to ask for its digest; pin its digest" {
		t.Error(err)
	}
}

const unpinned = `pod.launchables=[{"name": "a", "artifact": {"kind": "tar", "url": "https://f.example/a-2.tar.gz"}},
	{"name": "b", "artifact": {"kind": "exec", "path": "/bin/b"}},
	{"name": "c", "artifact": {"kind": "tar", "url": "https://f.example/c", "sha256": "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"}}]`

func TestResolve(t *testing.T) {
	s := &source{
		digests: map[string]string{"https://f.example/a-2.tar.gz": strings.Repeat("d", 64), "https://f.example/c": "x"},
	}
	spec := sample(t, unpinned, `name=""`)
	r := plan.ServiceSpecResolver{Domain: "example.org", Digests: &plan.DigestResolver{Source: s}}
	got, err := r.Resolve(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	l := got.Pod.Launchables
	if l[0].Artifact.SHA256 != strings.Repeat("d", 64) || l[1].Artifact.SHA256 != "" ||
		l[2].Artifact.SHA256 != strings.Repeat("c", 64) || s.asked != 1 {
		t.Errorf("%+v, asked %d times", l, s.asked)
	}
	if !regexp.MustCompile(`^a-[a-z0-9]{4}$`).MatchString(got.Name) {
		t.Errorf("the name is %q", got.Name)
	}
	if got.Pod.Service == nil || got.Pod.Service.Meta["host"] != got.Name+".example.org" {
		t.Errorf("%+v", got.Pod.Service)
	}
	if got.Replicas != nil || len(got.ReplicaGroups) != 1 || got.Digests != record.Missing {
		t.Errorf("%+v", got)
	}
	if spec.Pod.Launchables[0].Artifact.SHA256 != "" || spec.Name != "" || spec.Pod.Service != nil ||
		spec.Replicas == nil {
		t.Errorf("the original changed: %+v", spec)
	}
	if errs := got.Pod.Validate(); errs != nil {
		t.Error(errs)
	}
	again, err := r.Resolve(t.Context(), got)
	if change := plan.EvalSpecChange(got, again); err != nil || change.Kind != plan.UpToDate {
		t.Errorf("resolved again: %+v, %v", change, err)
	}
}

func TestResolveKeepsFieldsOfTheDocument(t *testing.T) {
	spec := sample(t, `digests="always"`, `pod.service={"name": "w", "meta": {"host": "own", "x": "y"}}`)
	got, err := (&plan.ServiceSpecResolver{Domain: "example.org"}).Resolve(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "web" || got.Digests != record.Always || got.Pod.Service.Meta["host"] != "own" ||
		got.Pod.Service.Name != "w" || len(got.Pod.Service.Meta) != 2 {
		t.Errorf("%+v %+v", got, got.Pod.Service)
	}
	spec = sample(t, `pod.service={"meta": {"x": "y"}}`)
	got, err = (&plan.ServiceSpecResolver{Domain: "example.org"}).Resolve(t.Context(), spec)
	if err != nil || got.Pod.Service.Meta["host"] != "web.example.org" || len(spec.Pod.Service.Meta) != 1 {
		t.Errorf("%+v, %+v, %v", got.Pod.Service, spec.Pod.Service, err)
	}
	if got, err = (&plan.ServiceSpecResolver{}).Resolve(t.Context(), sample(t)); err != nil || got.Pod.Service != nil {
		t.Errorf("%+v, %v", got.Pod.Service, err)
	}
}

func TestResolveErrors(t *testing.T) {
	_, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), sample(t, unpinned))
	if err == nil || !strings.Contains(err.Error(), "artifact https://f.example/a-2.tar.gz") {
		t.Error(err)
	}
}

func TestNameOfAProgramOfTheNode(t *testing.T) {
	spec := sample(t, `name=""`,
		`pod.launchables=[{"name": "b", "artifact": {"kind": "exec", "path": "/usr/bin/nginx"}}]`)
	got, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), spec)
	if err != nil || !strings.HasPrefix(got.Name, "nginx-") ||
		got.Pod.Launchables[0].Artifact.Kind != manifest.ArtifactExec {
		t.Error(got, err)
	}
}

func TestGenerateServiceName(t *testing.T) {
	for artifact, want := range map[string]string{
		"https://files.example/a/web-1.2.3.tar.gz": "web", "https://files.example/web.tgz?x=/y.tar": "web",
		"file:///srv/web_v2.tar":       "web",
		"https://f.example/web-server": "web-server", "https://f.example/My App.tar": "my-app",
		"/usr/bin/nginx": "nginx", "web-1.2.3-rc.1+b.TAR.GZ": "web",
		"registry.example.com:5000/team/web:1.2@sha256:" + strings.Repeat("a", 64): "web",
		"docker.io/nginx:latest": "nginx", "r.example/my_app-2:v1": "my-app",
		"": "service", "https://f.example/": "service", "https://f.example/12.tar": "12", "???": "service",
		"web@2.1": "web", "a--b-.zip": "a-b",
		strings.Repeat("x", 60): strings.Repeat("x", 45), strings.Repeat("x", 44) + "-yyyy": strings.Repeat("x", 44),
	} {
		got := plan.GenerateServiceName(artifact)
		if name, random := got[:max(0, len(got)-5)], got[max(0, len(got)-5):]; name != want ||
			!regexp.MustCompile(`^-[a-hj-km-np-z2-9]{4}$`).MatchString(random) {
			t.Errorf("%s: got %s, want %s-xxxx", artifact, got, want)
		}
	}
	seen := map[string]bool{}
	for range 200 {
		seen[plan.GenerateServiceName("web")] = true
	}
	if len(seen) < 195 {
		t.Errorf("200 names, only %d of them different", len(seen))
	}
}
