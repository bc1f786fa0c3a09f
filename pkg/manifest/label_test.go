package manifest_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// IsLabel accepts the same labels as Kubernetes' own package.
func TestLabelsAreKubernetesLabels(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune("aZ09-_./ \u00e4\x00")), 0, 6, -1),
		rapid.Map(rapid.IntRange(62, 65), func(n int) string { return strings.Repeat("x", n) }),
		rapid.Map(rapid.IntRange(250, 256), func(n int) string { return strings.Repeat("x", n) + "/a" }),
		rapid.String(),
	)
	rapid.Check(t, func(t *rapid.T) {
		key, value := text.Draw(t, "key"), text.Draw(t, "value")
		_, err := labels.ValidatedSelectorFromSet(labels.Set{key: value})
		if got := field.IsLabel(key, value); got != (err == nil) {
			t.Fatalf("%q=%q is a label: %t; Kubernetes: %v", key, value, got, err)
		}
	})
}

// IsDigest accepts the same texts as the pattern that is shown to users.
func TestDigestsMatchTheirPattern(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringMatching(`[0-9a-f]{63,65}`), rapid.StringMatching(`[0-9a-g]{64}`),
			rapid.String()).Draw(t, "text")
		if got, want := manifest.IsDigest(text), len(text) == 64 &&
			strings.Trim(text, "0123456789abcdef") == ""; got != want {
			t.Fatalf("%q is a digest: %t, want %t", text, got, want)
		}
	})
}
