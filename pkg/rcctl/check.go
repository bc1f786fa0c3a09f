package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// checkable is what rcctl manifest check reads, in words.
const checkable = "one YAML or JSON document: a pod's manifest, or a replication controller with one as its pod; or one or more documents of services"

// checked is a valid document.
type checked struct {
	about string // what it describes; empty: its manifest alone
	pod   *manifest.Manifest
}

// checkDocuments says whether the documents of a file are valid, whatever they describe.
func checkDocuments(c *cli.Context, std *stdio) error {
	all, err := readInput(c, func(source string, data []byte) ([]checked, error) {
		docs, err := document.AllToJSON(data, checkable)
		if err != nil {
			return nil, err
		}
		if len(docs) > 1 { // of which only services may have several
			return checkServices(docs)
		}
		return checkDocument(c, source, docs[0])
	})
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.about != "" {
			fmt.Fprintf(std.out, "%s is valid\n", one.about)
		}
		if err := tellManifest(std, one.pod); err != nil {
			return err
		}
	}
	return nil
}

// checkDocument checks one document as what it is. Where it may be an rc and a service, it is valid as either.
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

// tellManifest says which digest a valid manifest has, and warns of what will not work on most nodes.
func tellManifest(std *stdio, m *manifest.Manifest) error {
	std.warnOf(m)
	if record.Unpinned(m) {
		_, err := fmt.Fprintf(std.out, "manifest %s is valid; it has no digest yet, because an artifact has no sha256\n", m.ID)
		return err
	}
	canonical, err := m.Canonical()
	if err == nil {
		_, err = fmt.Fprintf(std.out, "manifest %s is valid, digest %s\n", m.ID, manifest.Digest(canonical))
	}
	return err
}
