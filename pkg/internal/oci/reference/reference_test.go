package reference_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
)

var digest = "sha256:" + strings.Repeat("0a", 32)

func TestParse(t *testing.T) {
	tests := []struct{ text, want string }{
		{"registry.example.com/team/web:1.2", "registry.example.com/team/web:1.2"},
		{"registry.example.com/web@" + digest, "registry.example.com/web@" + digest},
		{"registry.example.com:5000/web:1@" + digest, "registry.example.com:5000/web:1@" + digest},
		{"localhost/web:a", "localhost/web:a"},
		{"127.0.0.1:5000/web:a", "127.0.0.1:5000/web:a"},
		{"[::1]:5000/web:a", "[::1]:5000/web:a"},
		{"[::1]/web:a", "[::1]/web:a"},
		{"docker.io/nginx:1", "docker.io/library/nginx:1"},
		{"index.docker.io/team/nginx:1", "docker.io/team/nginx:1"},
		{"Registry.Example.com/a__b/c--d/e.f:V_1.-", "registry.example.com/a__b/c--d/e.f:V_1.-"},
		{"r.io/" + strings.Repeat("a", 255) + ":" + strings.Repeat("t", 128), ""},
	}
	for _, tt := range tests {
		ref, err := reference.Parse(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if tt.want != "" && ref.String() != tt.want {
			t.Errorf("%s: got %s, want %s", tt.text, ref, tt.want)
		}
		if again, err := reference.Parse(ref.String()); err != nil || again != ref {
			t.Errorf("%s: parsed again: %v, %v", tt.text, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", "web", "web:1", "library/web:1", "r.io/web", "r.io/", "r.io/:1", "r.io/Web:1", "r.io/web:", "r.io/web:-a",
		"r.io/web@", "r.io/web@sha256:0a", "r.io/web@sha512:" + strings.Repeat("0a", 64),
		"r.io/web@SHA256:" + digest[7:],
		"r.io/web:1@" + strings.ToUpper(digest), "r.io/web:1@" + digest + "@" + digest, "r.io//web:1", "r.io/web/:1",
		"r.io/../web:1", "r.io/a..b:1", "r.io/a___b:1", "r.io:0/web:1", "r.io:70000/web:1", "r.io:/web:1",
		"r.io:05/web:1",
		"-r.io/web:1", "r..io/web:1", "user@r.io/web:1", "https://r.io/web:1", "r.io/web:1 ", "r.io/web:1\n",
		"r.io\x00/web:1",
		"[::1/web:1", "[r.io]x:1/web:1", "[zz]:1/web:1", "::1/web:1", strings.Repeat("a.", 130) + "io/web:1",
		"r.io/" + strings.Repeat("a", 256) + ":1", "r.io/web:" + strings.Repeat("t", 129),
		"r.io/web?x=1:1", "r.io/web#x:1", "r.io/web%2f:1", strings.Repeat("x", 1<<20),
	} {
		ref, err := reference.Parse(text)
		if !errors.Is(err, reference.ErrInvalid) {
			t.Errorf("%.80q: got %+v, %v", text, ref, err)
			continue
		}
		if len(err.Error()) > 600 || !strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("%.80q: error of %d bytes: %.600v", text, len(err.Error()), err)
		}
	}
}

// FuzzParse: what is parsed has a canonical text, and no part that would change the address of a request.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"r.io/web:1@" + digest, "[::1]:5/a/b:c", "docker.io/x:y", "r.io:80/a@" + digest} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := reference.Parse(text)
		if err != nil {
			if !errors.Is(err, reference.ErrInvalid) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if again, err := reference.Parse(ref.String()); err != nil || again != ref {
			t.Errorf("%q: parsed again: %v, %v", text, again, err)
		}
		parts := ref.Registry + ref.Repository + ref.Tag
		if strings.ContainsAny(parts, "?#%@\\ \n") || strings.Contains(ref.Repository, "..") {
			t.Errorf("%q: %+v", text, ref)
		}
	})
}

func TestPlatforms(t *testing.T) {
	for _, text := range []string{"linux/amd64", "linux/arm/v7", "linux/arm64/v8"} {
		if p, err := reference.ParsePlatform(text); err != nil || p.String() != text {
			t.Errorf("%s: %v, %v", text, p, err)
		}
	}
	for _, text := range []string{
		"", "linux", "windows/amd64", "linux/", "linux//v7", "linux/a/b/c", "Linux/amd64",
		"linux/" + strings.Repeat("a", 33),
	} {
		if p, err := reference.ParsePlatform(text); !errors.Is(err, reference.ErrInvalid) {
			t.Errorf("%q: %v, %v", text, p, err)
		}
	}
	ranks := []struct {
		wanted, of string
		want       int
	}{
		{"linux/amd64", "linux/amd64", 2},
		{"linux/amd64", "linux/amd64/v2", 0},
		{"linux/amd64", "linux/arm64", 0},
		{"linux/arm64", "linux/arm64/v8", 2},
		{"linux/arm64/v8", "linux/arm64", 2},
		{"linux/arm", "linux/arm/v7", 2},
		{"linux/arm/v7", "linux/arm/v6", 1},
		{"linux/arm/v6", "linux/arm/v7", 0},
	}
	for _, tt := range ranks {
		wanted, _ := reference.ParsePlatform(tt.wanted)
		of, _ := reference.ParsePlatform(tt.of)
		if got := wanted.Rank(of); got != tt.want {
			t.Errorf("%s for %s: rank %d, want %d", tt.of, tt.wanted, got, tt.want)
		}
	}
	if wanted, of := (reference.Platform{OS: "linux", Architecture: "amd64"}),
		(reference.Platform{OS: "unknown", Architecture: "unknown"}); wanted.Rank(of) != 0 {
		t.Error("an attestation was taken for an image")
	}
}
