package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Limits of a configuration, in bytes.
const (
	maxConfigFile  = 64 << 10 // one file that {"$file": path} names
	maxConfigBytes = 1 << 20  // the whole configuration with these files
)

// renderConfig returns a pod's configuration file: the manifest's tree as JSON, in which the content of a file replaces
// each {"$file": path}. Errors never contain content of a file.
func renderConfig(tree manifest.Config) ([]byte, error) {
	if tree == nil {
		return []byte("{}\n"), nil
	}
	filled, err := fill("config", map[string]any(tree))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(filled); err != nil {
		return nil, errors.New("config cannot be written as JSON") // the error may quote a value
	}
	if out.Len() > maxConfigBytes {
		return nil, fmt.Errorf("config: %d bytes with the files that it names; allowed: at most %d",
			out.Len(), maxConfigBytes)
	}
	return out.Bytes(), nil
}

func fill(at string, value any) (any, error) {
	switch value := value.(type) {
	case map[string]any:
		if name, found := value[manifest.FileKey]; found {
			return readConfigFile(at, name, len(value))
		}
		out := make(map[string]any, len(value))
		for key, inner := range value {
			filled, err := fill(at+"."+key, inner)
			if err != nil {
				return nil, err
			}
			out[key] = filled
		}
		return out, nil
	case []any:
		out := make([]any, len(value))
		for i, inner := range value {
			filled, err := fill(fmt.Sprintf("%s[%d]", at, i), inner)
			if err != nil {
				return nil, err
			}
			out[i] = filled
		}
		return out, nil
	default:
		return value, nil
	}
}

// readConfigFile cuts the line end that editors add at the end.
func readConfigFile(at string, name any, keys int) (string, error) {
	path, ok := name.(string)
	if !ok || keys != 1 {
		return "", fmt.Errorf("%s: %s with other keys, or with something other than a path", at, manifest.FileKey)
	}
	f, _, err := regular.Open(path, os.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	defer func() { _ = f.Close() }()
	data, err := regular.ReadAll(f, maxConfigFile)
	if err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	if !utf8.Valid(data) {
		return "", fmt.Errorf("%s: %s is not UTF-8 text, which is what JSON can hold", at, path)
	}
	text, cut := strings.CutSuffix(string(data), "\n")
	if cut {
		text = strings.TrimSuffix(text, "\r")
	}
	return text, nil
}
