package manifest

import (
	"regexp"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Pattern is a form of text for validation and the JSON Schema.
type Pattern struct {
	re      *regexp.Regexp
	allowed string
}

// String returns the regular expression, which means the same in Go and in ECMAScript.
func (p Pattern) String() string { return p.re.String() }

// A segment is not "", "." or "..". So a path of segments is clean, and does not lead out of its directory.
const segment = `(?:[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\x00-\x1f\x7f]+)`

// account is a name of an account, or a number that is not 0.
const account = `[A-Za-z_][A-Za-z0-9._-]{0,31}|[1-9][0-9]{0,9}`

// The forms of texts in manifests.
var (
	HexDigest = Pattern{regexp.MustCompile(`^[0-9a-f]{64}$`), "64 lower-case hex digits (the output of sha256sum)"}
	EnvName   = Pattern{
		regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`),
		"a name of letters, digits and '_' that does not start with a digit",
	}

	// For the schema only; validation parses the URL.
	ArtifactURL = Pattern{
		regexp.MustCompile(`^(?:[Ff][Ii][Ll][Ee]:/[^?#]*\??#?|[Hh][Tt][Tt][Pp][Ss]://[^/?#@][^#]*#?)$`),
		"file:///absolute/path or https://host/path",
	}

	AbsolutePath = Pattern{
		regexp.MustCompile(`^(?:/` + segment + `)+$`),
		"an absolute path such as /opt/web/run, without '.', '..', empty parts and control characters",
	}
	InnerPath = Pattern{
		regexp.MustCompile(`^` + segment + `(?:/` + segment + `)*$`),
		"a path in the artifact such as bin/launch: not absolute, without '.', '..', empty parts and control " +
			"characters",
	}
	WorkPath = Pattern{
		regexp.MustCompile(`^/?` + segment + `(?:/` + segment + `)*$`),
		"an absolute path, or one below POD_HOME such as data, without '.', '..', empty parts and control characters",
	}

	// ImageCommand is the program of a container.
	ImageCommand = Pattern{
		regexp.MustCompile(`^(?:(?:/` + segment + `)+|` + segment + `)$`),
		"a program of the image: an absolute path such as /usr/bin/web, or a name that PATH finds",
	}

	// The names that useradd(8) and directory services accept, or a user id. User 0 must be given by name.
	UserName = Pattern{
		regexp.MustCompile(`^(?:` + account + `)$`),
		"the name of an account of the node, or a user id from 1 to 4294967294 in quotes; user 0 only as root",
	}
	ImageUser = Pattern{
		regexp.MustCompile(`^(?:` + account + `)(?::(?:` + account + `|0))?$`),
		"an account of the image or a user id from 1 to 4294967294, alone or with its group: web, 33 or web:www; in " +
			"quotes if it is a number; user 0 only as root",
	}

	// For the schema only; validation parses it.
	ImageRef = Pattern{
		regexp.MustCompile(`^[^/@?#\x00-\x20]+/[^@?#\x00-\x20]+(?:@sha256:[0-9a-f]{64})?$`),
		"registry/name:tag@sha256:digest",
	}
	Platform = Pattern{
		regexp.MustCompile(`^linux/[a-z0-9][a-z0-9_.-]{0,31}(?:/[a-z0-9][a-z0-9_.-]{0,31})?$`),
		"linux/architecture or linux/architecture/variant, such as linux/arm64",
	}

	// A tag that is not a DNS label is found only with Consul's API.
	ServiceTag = Pattern{regexp.MustCompile(`^[!-~]{1,255}$`), "1 to 255 visible ASCII characters"}
	MetaKey    = Pattern{
		regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`),
		"1 to 128 letters, digits, '-' and '_', not starting with \"consul-\" or \"rcfarm_\"",
	}
	MetaValue = Pattern{
		regexp.MustCompile(`^[^\x00-\x1f\x7f]{0,512}$`),
		"at most 512 characters, none of them a control character",
	}
)

// ok also requires at most MaxTextBytes.
func (p Pattern) ok(text string) bool { return len(text) <= MaxTextBytes && p.re.MatchString(text) }

// IsDigest reports whether a text is a digest.
func IsDigest(text string) bool { return field.IsDigest(text) }

func (p Pattern) check(errs *field.Errors, path, text string) {
	if !p.ok(text) {
		errs.Add(path, text, p.allowed)
	}
}

func (p Pattern) checkGiven(errs *field.Errors, path, text string) {
	if text == "" {
		errs.Missing(path, p.allowed)
		return
	}
	p.check(errs, path, text)
}
