package rcctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// manifestAllowed is what a document with a manifest may be, in words.
const manifestAllowed = "one YAML or JSON document: a pod's manifest, or a replication controller with one as its pod"

func fileFlag() cli.Flag {
	return &cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` with the document, YAML or JSON; - reads standard input"}
}

// readSpec reads, converts and validates the document that -f names. Its errors are *usageError and *inputError.
func readSpec(c *cli.Context) (*rc.Spec, error) {
	return readInput(c, func(source string, data []byte) (*rc.Spec, error) {
		converted, err := document.ToJSON(data, inspect.SpecAllowed)
		if err != nil {
			return nil, err
		}
		return decodeSpec(c, source, converted)
	})
}

// decodeSpec decodes and validates a document, which may be what rcctl rc get has printed.
func decodeSpec(c *cli.Context, source string, converted []byte) (*rc.Spec, error) {
	spec, ignored, err := inspect.DecodeShown(converted)
	if err == nil && len(ignored) > 0 {
		fmt.Fprintf(stdioOf(c).err, "rcctl: %s: ignored, as only rcfarm sets them: %s\n", source, strings.Join(ignored, ", "))
	}
	return spec, err
}

// readManifest is readManifests for that of the pod alone.
func readManifest(c *cli.Context) (*manifest.Manifest, error) {
	all, err := readManifests(c)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// readManifests reads, converts and validates the manifest that -f names, alone or as the pod of a controller; then those of its groups
// follow. Its errors are *usageError and *inputError.
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

// readInput decodes the file that -f names, of a command without arguments. Its errors are *usageError and *inputError.
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

// readFile decodes a file, or standard input. Its errors are *inputError.
func readFile[T any](c *cli.Context, name string, decode func(source string, data []byte) (T, error)) (decoded T, err error) {
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

// unwrapPath drops the file name from an error whose reader prints it anyway.
func unwrapPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("%s: %w", path.Op, path.Err)
	}
	return err
}
