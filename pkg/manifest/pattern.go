package manifest

import (
	"regexp"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// pattern is a form of text that validation and the JSON Schema share, with words for people. The text is a regular
// expression that means the same in Go and in ECMAScript.
type pattern struct {
	re      *regexp.Regexp
	allowed string
}

// A segment of a path is none of "", "." and "..": a path made of segments is clean and leads nowhere but down.
const segment = `(?:[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\x00-\x1f\x7f]+)`

var (
	hexDigest = pattern{regexp.MustCompile(`^[0-9a-f]{64}$`), "64 lower-case hex digits (the output of sha256sum)"}
	envName   = pattern{regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`), "a name of letters, digits and '_' that does not start with a digit"}

	// The parser of URLs decides; this is for the schema.
	artifactURL = pattern{
		regexp.MustCompile(`^(?:[Ff][Ii][Ll][Ee]:/[^?#]*\??#?|[Hh][Tt][Tt][Pp][Ss]://[^/?#@][^#]*#?)$`),
		"file:///absolute/path or https://host/path",
	}

	absolutePath = pattern{
		regexp.MustCompile(`^(?:/` + segment + `)+$`),
		"an absolute path such as /opt/web/run, without '.', '..', empty parts and control characters",
	}
	innerPath = pattern{
		regexp.MustCompile(`^` + segment + `(?:/` + segment + `)*$`),
		"a path in the artifact such as bin/launch: not absolute, without '.', '..', empty parts and control characters",
	}
	workPath = pattern{
		regexp.MustCompile(`^/?` + segment + `(?:/` + segment + `)*$`),
		"an absolute path, or one below POD_HOME such as data, without '.', '..', empty parts and control characters",
	}

	// Names of accounts as useradd(8) and directories of accounts have them. User 0 can only be had by its name.
	userName = pattern{
		regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z0-9._-]{0,31}|[1-9][0-9]{0,9})$`),
		"the name of an account of the node, or a user id from 1 to 4294967294 in quotes; user 0 only as root",
	}

	// A tag that is no DNS label is found by Consul's API only.
	serviceTag = pattern{regexp.MustCompile(`^[!-~]{1,255}$`), "1 to 255 visible ASCII characters"}
	metaKey    = pattern{
		regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`),
		"1 to 128 letters, digits, '-' and '_', not starting with \"consul-\" or \"rcfarm_\"",
	}
	metaValue = pattern{regexp.MustCompile(`^[^\x00-\x1f\x7f]{0,512}$`), "at most 512 characters, none of them a control character"}
)

// ok reports whether a text is of this form. Every form is bounded.
func (p pattern) ok(text string) bool { return len(text) <= MaxTextBytes && p.re.MatchString(text) }

// IsDigest reports whether a text is a digest as artifacts and manifests have it.
func IsDigest(text string) bool { return hexDigest.ok(text) }

// check records a text that is not of this form.
func (p pattern) check(errs *field.Errors, path, text string) {
	if !p.ok(text) {
		errs.Add(path, text, p.allowed)
	}
}

// checkGiven is check for a text that has to be there.
func (p pattern) checkGiven(errs *field.Errors, path, text string) {
	if text == "" {
		errs.Missing(path, p.allowed)
		return
	}
	p.check(errs, path, text)
}
