package rtnl

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// WaitGone waits until a link is gone. At the deadline of ctx the error matches ctx's error.
func (c *Conn) WaitGone(ctx context.Context, index int) error {
	return c.wait(ctx, unix.RTNLGRP_LINK, index, func() (string, error) {
		_, err := c.LinkByIndex(index)
		if errors.Is(err, ErrNoLink) {
			return "", nil
		}
		return "its end", err
	})
}
