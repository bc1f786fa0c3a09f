package rcctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/docs"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

const manifestAllowed = "one YAML or JSON document: a pod's manifest, or a replication controller with one as its pod"

func fileFlag() []cli.Flag {
	return option("file/f", "`FILE` with the document, YAML or JSON; - reads standard input")
}

func readSpec(c *cli.Context) (*rc.Spec, error) {
	return readInput(c, func(source string, data []byte) (*rc.Spec, error) {
		converted, err := document.ToJSON(data, inspect.SpecAllowed)
		if err != nil {
			return nil, err
		}
		return decodeSpec(c, source, converted)
	})
}

// decodeSpec also accepts a document that rcctl rc get has printed.
func decodeSpec(c *cli.Context, source string, converted []byte) (*rc.Spec, error) {
	spec, ignored, err := inspect.DecodeShown(converted)
	if err == nil && len(ignored) > 0 {
		fmt.Fprintf(stdioOf(c).err, "rcctl: %s: ignored, because only rcfarm sets them: %s\n",
			source, strings.Join(ignored, ", "))
	}
	return spec, err
}

// readManifests reads the manifest that -f names, alone or as the pod of a controller, whose groups may add manifests.
func readManifests(c *cli.Context) ([]*manifest.Manifest, error) {
	return readInput(c, func(source string, data []byte) ([]*manifest.Manifest, error) {
		converted, err := document.ToJSON(data, manifestAllowed)
		if err != nil {
			return nil, err
		}
		var top struct {
			Pod      json.RawMessage `json:"pod"`
			Manifest json.RawMessage `json:"manifest"`
		}
		if json.Unmarshal(converted, &top) != nil || top.Pod == nil && top.Manifest == nil {
			m, err := manifest.Decode(converted)
			return []*manifest.Manifest{m}, err
		}
		spec, err := decodeSpec(c, source, converted)
		if err != nil {
			return nil, err
		}
		return manifestsOf(spec), nil
	})
}

// readInput reads the file that -f names, for a command without arguments. Its errors are *usageError and *inputError.
func readInput[T any](c *cli.Context, decode func(source string, data []byte) (T, error)) (decoded T, err error) {
	name := c.String("file")
	if name == "" {
		return decoded, badFlag(c, "--file", "", "the name of a file, or - for standard input")
	}
	if _, err := noArgs(c); err != nil {
		return decoded, err
	}
	return readFile(c, name, decode)
}

func readFile[T any](c *cli.Context, name string,
	decode func(source string, data []byte) (T, error),
) (decoded T, err error) {
	from, source := c.App.Reader, "stdin"
	if name != "-" {
		source = name
		file, err := os.Open(name)
		if err != nil {
			return decoded, &inputError{source: source, err: unwrapPath(err)}
		}
		defer file.Close()
		from = file
	}
	data, err := io.ReadAll(io.LimitReader(from, document.MaxBytes+1))
	if err == nil {
		decoded, err = decode(source, data)
	}
	if err != nil {
		return decoded, &inputError{source: source, err: unwrapPath(err)}
	}
	return decoded, nil
}

func unwrapPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("%s: %w", path.Op, path.Err)
	}
	return err
}

func manifestCommand() *cli.Command {
	return group("manifest", "check documents of all kinds: pod manifests, rcs and services; needs no Consul",
		leaf("check -f FILE", "check a document, and print the digest of its manifest",
			`Reads a manifest, the document of an rc, or one or more documents of services, and names every
mistake in it (exit code 2). The fields of a document decide its kind. It warns about fields that are valid but do not
work on most nodes; a warning changes no exit code. It does not read artifacts: if an artifact of a service has no
sha256, its manifest has no digest yet.

Examples:
  rcctl manifest check -f web.yaml
  rcctl manifest check -f rc.yaml
  rcctl manifest check -f service.yaml`,
			offline(checkDocuments),
			fileFlag(),
		),
		leaf("canonical -f FILE", "print the canonical JSON of a manifest: what is hashed and signed",
			`Prints exactly the bytes that are hashed and signed, without a newline at the end.

Examples:
  rcctl manifest canonical -f web.yaml | sha256sum
  rcctl manifest canonical -f web.yaml | ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n rcfarm-manifest > web.sig`,
			offline(printCanonical),
			fileFlag(),
		),
		schemaCommand("manifest", "manifests", "manifest.schema.json", "rcctl manifest check", docs.ManifestSchema),
	)
}

func printCanonical(c *cli.Context, std *stdio) error {
	all, err := readManifests(c)
	if err != nil {
		return err
	}
	canonical, err := all[0].Canonical()
	if err != nil {
		return err
	}
	std.warnOf(all[0])
	_, err = std.out.Write(canonical)
	return err
}

func schemaCommand(group, of, file, checker, schema string) *cli.Command {
	return leaf("schema", "print the JSON Schema of "+of+", for editors; needs no Consul",
		`The schema accepts every valid document. `+checker+` also checks what a schema cannot express.

Examples:
  rcctl `+group+` schema > `+file+`
and, as the first line of a document, for editors with yaml-language-server:
  # yaml-language-server: $schema=`+file,
		offline(func(c *cli.Context, std *stdio) error {
			if _, err := noArgs(c); err != nil {
				return err
			}
			_, err := io.WriteString(std.out, schema)
			return err
		}),
	)
}

const checkable = "one YAML or JSON document: a pod's manifest, or a replication controller with one as its pod; or " +
	"one or more documents of services"

type checked struct {
	about string // what the document describes; empty: only a manifest
	pod   *manifest.Manifest
}

func checkDocuments(c *cli.Context, std *stdio) error {
	all, err := readInput(c, func(source string, data []byte) ([]checked, error) {
		docs, err := document.AllToJSON(data, checkable)
		if err != nil {
			return nil, err
		}
		if len(docs) > 1 { // only documents of services may share a file
			return checkServices(docs)
		}
		return checkDocument(c, source, docs[0])
	})
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.about != "" {
			std.printLine("%s is valid", one.about)
		}
		if err := printManifest(std, one.pod); err != nil {
			return err
		}
	}
	return nil
}

// checkDocument tries a second kind if the fields of the document fit an rc and a service.
func checkDocument(c *cli.Context, source string, doc []byte) (all []checked, err error) {
	for i, kind := range inspect.KindsOf(doc) {
		var one []checked
		var bad error
		switch kind {
		case inspect.ManifestDocument:
			var m *manifest.Manifest
			m, bad = manifest.Decode(doc)
			one = []checked{{pod: m}}
		case inspect.RCDocumentKind:
			one, bad = checkRC(c, source, doc)
		case inspect.ServiceDocument:
			one, bad = checkServices([][]byte{doc})
		}
		if bad == nil {
			return one, nil
		}
		if i == 0 {
			err = bad
		}
	}
	return nil, err
}

func checkRC(c *cli.Context, source string, doc []byte) ([]checked, error) {
	spec, err := decodeSpec(c, source, doc)
	if err != nil {
		return nil, err
	}
	return []checked{{"rc " + spec.Name, spec.Pod}}, nil
}

func checkServices(docs [][]byte) (all []checked, err error) {
	specs, err := decodeServices(docs)
	for _, spec := range specs {
		about := "service " + spec.Name
		if spec.Name == "" {
			about = "service without a name, which gets one when it is deployed,"
		}
		all = append(all, checked{about, spec.Pod})
	}
	return all, err
}

func printManifest(std *stdio, m *manifest.Manifest) error {
	std.warnOf(m)
	if record.Unpinned(m) {
		_, err := fmt.Fprintf(std.out,
			"manifest %s is valid; it has no digest yet, because an artifact has none\n", m.ID)
		return err
	}
	canonical, err := m.Canonical()
	if err == nil {
		_, err = fmt.Fprintf(std.out, "manifest %s is valid, digest %s\n", m.ID, manifest.Digest(canonical))
	}
	return err
}
