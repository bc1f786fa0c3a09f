package plan

import (
	"crypto/rand"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

// nameLetters are those of the random end of a name: none of them is taken for another.
const nameLetters = "abcdefghjkmnpqrstuvwxyz23456789"

// randomLetters is how many there are.
const randomLetters = 4

var (
	extension = regexp.MustCompile(`(?i)\.(tar|tgz|gz|xz|zst|bz2|zip)$`)
	version   = regexp.MustCompile(`([-_.@:]v?[0-9]+(\.[0-9]+)+([-+.][0-9A-Za-z.]+)*|[-_.@:]?v?[0-9]+)$`)
	unnamable = regexp.MustCompile(`[^a-z0-9]+`)
)

// GenerateServiceName makes a name for a service of the URL or path of its artifact: its last element without version and extension, and
// four random characters. What cannot be in a name becomes a dash.
func GenerateServiceName(artifact string) string {
	if u, err := url.Parse(artifact); err == nil && u.Path != "" {
		artifact = u.Path
	}
	base := path.Base(artifact)
	for extension.MatchString(base) {
		base = extension.ReplaceAllString(base, "")
	}
	if short := version.ReplaceAllString(base, ""); short != "" {
		base = short
	}
	base = strings.Trim(unnamable.ReplaceAllString(strings.ToLower(base), "-"), "-")
	base = strings.TrimRight(base[:min(len(base), record.MaxNameBytes-randomLetters-1)], "-")
	if base == "" {
		base = "service"
	}
	random := make([]byte, randomLetters)
	_, _ = rand.Read(random) // it never fails
	for i, b := range random {
		random[i] = nameLetters[int(b)%len(nameLetters)]
	}
	return base + "-" + string(random)
}
