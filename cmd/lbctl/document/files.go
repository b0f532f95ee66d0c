package document

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// extensions are what a folder's documents end in; other files in it are left alone.
var extensions = []string{".yaml", ".yml", ".json"}

// Stdin is what the file that was read from stdin is called.
const Stdin = "stdin"

// ReadFiles reads the documents at paths: a file, a folder (its *.yaml, *.yml and *.json in the order of their names) or
// "-" for stdin. An error is about a path or the size of the whole, never about what is in a file.
func ReadFiles(paths []string, stdin io.Reader) ([]File, error) {
	var files []File
	left := int64(documentBytesMax)
	for _, path := range paths {
		if path == "-" {
			data, err := readBounded(stdin, Stdin, &left)
			if err != nil {
				return nil, err
			}
			files = append(files, File{Name: Stdin, Folder: ".", Data: data})
			continue
		}
		names, err := documentsAt(path)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := readDocument(name, &left)
			if err != nil {
				return nil, err
			}
			files = append(files, File{Name: name, Folder: filepath.Dir(name), Data: data})
		}
	}
	return files, nil
}

// documentsAt lists the files that a path stands for.
func documentsAt(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(extensions, filepath.Ext(e.Name())) {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("folder %s holds no documents (*.yaml, *.yml, *.json)", path)
	}
	return names, nil
}

func readDocument(name string, left *int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, name, left)
}

// readBounded reads a document whole and takes its size off what is left.
func readBounded(r io.Reader, name string, left *int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, *left+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	*left -= int64(len(data))
	if *left < 0 {
		return nil, fmt.Errorf("%s: documents are larger than %d MiB together", name, documentBytesMax>>20)
	}
	return data, nil
}

// ReadFile reads a file that a document or flag names, if it is no longer than bytesMax.
func ReadFile(path string, bytesMax int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(bytesMax)+1))
	if err == nil && len(data) > bytesMax {
		err = fmt.Errorf("it is longer than %d KiB", bytesMax>>10)
	}
	return data, err
}
