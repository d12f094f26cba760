//! Combines several frames into one write.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::entry::Frame;
use crate::table::Table;

/// A batch is full when its frames have this many bytes. Larger batches would need fewer system calls and context
/// switches, but the small frames of other streams would wait longer.
const BATCH: usize = 128 * 1024;

/// A payload of at least this many bytes is written without a copy.
const LARGE: usize = 4 * 1024;

/// Complete frames, as a list of byte strings. A large payload is one of these byte strings and is not copied.
#[derive(Default)]
pub(crate) struct Batch {
    parts: VecDeque<Bytes>,
    /// The headers and small payloads that follow the last element of `parts`.
    small: BytesMut,
    remaining: usize,
}

impl Batch {
    /// Adds frames, one of each stream in turn, until the batch is full or the table has no more frames to write.
    pub(crate) fn fill(&mut self, table: &mut Table) {
        while self.remaining + self.small.len() < BATCH {
            let Some((stream, frame)) = table.next_frame() else { break };
            // `header` always succeeds, because the table accepts only frames with a valid header.
            let Ok(header) = frame.header(stream) else { continue };
            self.small.extend_from_slice(&header.encode());
            match frame {
                Frame::Open(payload) | Frame::Message(payload) => self.payload(payload),
                Frame::Data { fd, bytes } => {
                    self.small.extend_from_slice(&[fd]);
                    self.payload(bytes);
                }
                Frame::Reset(why) => self.small.extend_from_slice(why.as_bytes()),
                Frame::Credit(credit) => self.small.extend_from_slice(&credit.to_be_bytes()),
                Frame::End => {}
            }
        }
        self.end_part();
    }

    fn payload(&mut self, payload: Bytes) {
        if payload.len() < LARGE {
            self.small.extend_from_slice(&payload);
        } else {
            self.end_part();
            self.remaining += payload.len();
            self.parts.push_back(payload);
        }
    }

    fn end_part(&mut self) {
        if !self.small.is_empty() {
            self.remaining += self.small.len();
            self.parts.push_back(self.small.split().freeze());
        }
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.parts);
        filled.map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }

    fn advance(&mut self, mut written: usize) {
        self.remaining -= written;
        while let Some(part) = self.parts.front_mut() {
            if written < part.len() {
                return part.advance(written);
            }
            written -= part.len();
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn partial_writes_lose_and_repeat_nothing(
            lengths in prop::collection::vec(prop_oneof![0_usize..20, LARGE - 1..LARGE + 2], 0..12),
            writes in prop::collection::vec(1_usize..5000, 1..6),
        ) {
            let mut batch = Batch::default();
            let mut expected = Vec::new();
            for (number, length) in lengths.into_iter().enumerate() {
                let payload = vec![u8::try_from(number).expect("small"); length];
                batch.small.extend_from_slice(b"header");
                expected.extend_from_slice(b"header");
                expected.extend_from_slice(&payload);
                batch.payload(payload.into());
            }
            batch.end_part();
            prop_assert_eq!(batch.remaining(), expected.len());
            let mut written = Vec::new();
            for most in writes.into_iter().cycle() {
                if !batch.has_remaining() {
                    break;
                }
                let mut slices = [IoSlice::new(&[]); 4];
                let filled = batch.chunks_vectored(&mut slices);
                let all: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert!(all.starts_with(batch.chunk()));
                let part = &all[..all.len().min(most)];
                written.extend_from_slice(part);
                let length = part.len();
                batch.advance(length);
            }
            prop_assert_eq!(written, expected);
        }
    }
}
