// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// file is one of an archive.
type file struct {
	name    string
	mode    fs.FileMode
	content []byte
}

// write writes an archive, and says its SHA-256.
func write(path string, files []file, at time.Time, pack func(io.Writer, []file, time.Time) error) (string, error) {
	target, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = target.Close() }()
	sum := sha256.New()
	if err := pack(io.MultiWriter(target, sum), files, at); err != nil {
		return "", fmt.Errorf("writing %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), target.Close()
}

// packTar leaves the owner out, and the time and the name that gzip could note.
func packTar(target io.Writer, files []file, at time.Time) error {
	compressed, err := gzip.NewWriterLevel(target, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: int64(f.mode), Size: int64(len(f.content)), ModTime: at, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), compressed.Close())
}

func packZip(target io.Writer, files []file, at time.Time) error {
	w := zip.NewWriter(target)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		header.SetMode(f.mode)
		entry, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := entry.Write(f.content); err != nil {
			return err
		}
	}
	return w.Close()
}
