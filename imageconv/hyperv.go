package imageconv

import (
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/vhd"
	"github.com/containerdisk/containerdisk/imageconv/vhdx"
)

func openVHD(im *Image, f blockdev.Source, p Policy) error {
	r, err := vhd.Open(f, f.Size(), vhd.Options{MaxSize: p.maxSize()})
	if err != nil {
		return err
	}
	im.Source = r
	im.info.ClusterSize = r.Header().BlockSize
	im.info.Features = []string{r.Header().Type.String()}
	return nil
}

func openVHDX(im *Image, f blockdev.Source, p Policy) error {
	r, err := vhdx.Open(f, f.Size(), vhdx.Options{MaxSize: p.maxSize()})
	if err != nil {
		return err
	}
	im.Source = r
	im.info.ClusterSize = r.Info().BlockSize
	im.info.Features = []string{"dynamic"}
	if r.Info().Fixed {
		im.info.Features = []string{"fixed"}
	}
	if n := r.Info().Replayed; n > 0 {
		im.info.Features = append(im.info.Features, fmt.Sprintf("log replayed (%d entries)", n))
	}
	return nil
}
