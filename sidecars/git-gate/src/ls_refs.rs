//! Answers the command `ls-refs` of protocol version 2 (gitprotocol-v2(5)).
//!
//! The gate answers from the upstream's list of refs, because this list contains refs that the mirror does not have,
//! such as `refs/pull/1/head`. git serves any object that the mirror has. It is therefore sufficient to fetch the
//! objects of the refs that a client names.

use std::collections::HashSet;

use bytes::Bytes;

use crate::push_head::{DIGITS, length};
use crate::upstream::Upstream;

/// The maximum number of bytes of a request that the gate answers. git answers a larger request with the mirrored refs
/// only.
pub(crate) const MOST_REQUEST: usize = 1 << 20;

/// The number of leading bytes that identify a request for `ls-refs`.
pub(crate) const FIRST: usize = 19;

/// Returns whether a request that begins with `first` is for `ls-refs`.
pub(crate) fn is_ls_refs(first: &[u8]) -> bool {
    first.get(DIGITS..FIRST).is_some_and(|words| words == b"command=ls-refs")
}

/// A request to list refs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListRequest {
    peel: bool,
    symrefs: bool,
    unborn: bool,
    /// The prefixes of the wanted refs. If there are no prefixes, all refs are wanted.
    prefixes: Vec<Vec<u8>>,
}

impl ListRequest {
    /// Parses the packet lines of a request. Returns `None` if the request is truncated or malformed.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let (mut request, mut is_argument) = (Self::default(), false);
        loop {
            let length = length(bytes.get(..DIGITS)?)?;
            let line = bytes.get(DIGITS..length.max(DIGITS))?;
            bytes = &bytes[length.max(DIGITS)..];
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            match (length, line) {
                (0, _) => return Some(request),
                (1, _) => is_argument = true,
                (2 | 3, _) => return None,
                _ if !is_argument => {}
                (_, b"peel") => request.peel = true,
                (_, b"symrefs") => request.symrefs = true,
                (_, b"unborn") => request.unborn = true,
                (_, line) => request.prefixes.extend(line.strip_prefix(b"ref-prefix ").map(<[u8]>::to_vec)),
            }
        }
    }

    fn wants(&self, name: &[u8]) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Returns the object ids of the refs that the request names and that the mirror does not have. Returns no ids for
    /// a request without prefixes, because such a request does not name refs.
    pub(crate) fn others<'u>(&self, upstream: &'u Upstream) -> HashSet<&'u str> {
        if self.prefixes.is_empty() {
            return HashSet::new();
        }
        let others = upstream.others.iter().filter(|(name, _)| self.wants(name));
        others.map(|(_, id)| id.as_str()).collect()
    }

    /// Returns the list of the wanted refs. `head` is the target of the mirror's `HEAD`.
    pub(crate) fn answer(&self, upstream: &Upstream, head: Option<&str>) -> Bytes {
        let mut output = Vec::new();
        if self.wants(b"HEAD") {
            match (&upstream.head, &upstream.default, head) {
                (Some(id), default, _) => self.add(&mut output, id, b"HEAD", default.as_deref(), None),
                (None, _, Some(head)) if self.unborn => {
                    self.add(&mut output, "unborn", b"HEAD", Some(head), None);
                }
                _ => {}
            }
        }
        let mirrored = upstream.refs.iter().map(|(name, id)| (name.as_bytes(), id));
        let others = upstream.others.iter().map(|(name, id)| (name.as_slice(), id));
        let mut all: Vec<(&[u8], &String)> =
            mirrored.chain(others).filter(|(name, _)| self.wants(name)).collect();
        all.sort_unstable();
        for (name, id) in all {
            let alias = std::str::from_utf8(name).ok().and_then(|name| upstream.aliases.get(name));
            let peeled = upstream.peeled.get(name).map(String::as_str);
            self.add(&mut output, id, name, alias.map(String::as_str), peeled);
        }
        output.extend(b"0000");
        output.into()
    }

    fn add(&self, output: &mut Vec<u8>, id: &str, name: &[u8], target: Option<&str>, peeled: Option<&str>) {
        let mut line = [id.as_bytes(), b" ", name].concat();
        for (word, value) in
            [(" symref-target:", target.filter(|_| self.symrefs)), (" peeled:", peeled.filter(|_| self.peel))]
        {
            let value = value.into_iter();
            value.for_each(|value| line.extend([word.as_bytes(), value.as_bytes()].concat()));
        }
        line.push(b'\n');
        output.extend(format!("{:04x}", line.len() + DIGITS).into_bytes());
        output.extend(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(lines: &[&str]) -> Vec<u8> {
        let packet = |line: &&str| match *line {
            "0000" | "0001" => (*line).to_owned(),
            line => format!("{:04x}{line}", line.len() + DIGITS),
        };
        lines.iter().map(packet).collect::<String>().into_bytes()
    }

    #[test]
    fn lists_the_wanted_refs() {
        let id = "1".repeat(40);
        let upstream = Upstream {
            default: Some("refs/heads/main".to_owned()),
            head: Some(id.clone()),
            refs: [("refs/heads/main".to_owned(), id.clone()), ("refs/tags/v1".to_owned(), id.clone())]
                .into(),
            others: [
                (b"refs/pull/1/head".to_vec(), "2".repeat(40)),
                (b"refs/heads/\xe9".to_vec(), id.clone()),
            ]
            .into(),
            peeled: [(b"refs/tags/v1".to_vec(), "3".repeat(40))].into(),
            ..Upstream::default()
        };
        for (arguments, expected, others) in [
            (&[][..], "HEAD main \u{fffd} 1/head v1", 0),
            (
                &["peel\n", "symrefs\n", "ref-prefix HEAD\n", "ref-prefix refs/tags/\n"],
                "HEAD main v1 peeled",
                0,
            ),
            (&["ref-prefix refs/pull/1/head"], "1/head", 1),
            (&["ref-prefix refs/"], "main \u{fffd} 1/head v1", 2),
            (&["ref-prefix nothing"], "", 0),
        ] {
            let request = [&["command=ls-refs\n", "agent=x", "0001"][..], arguments, &["0000"]].concat();
            let request = packets(&request);
            assert!(is_ls_refs(&request));
            let request = ListRequest::parse(&request).expect("a request");
            assert_eq!(request.others(&upstream).len(), others, "{arguments:?}");
            let text = request.answer(&upstream, Some("refs/heads/other"));
            let text = String::from_utf8_lossy(&text);
            let words = ["HEAD", "main", "\u{fffd}", "1/head", "v1", "peeled"];
            let found: Vec<&str> = words.into_iter().filter(|word| text.contains(word)).collect();
            assert_eq!(found.join(" "), expected, "{text}");
            assert!(text.ends_with("0000"));
        }
        let unborn = ListRequest { unborn: true, symrefs: true, ..ListRequest::default() };
        let text = unborn.answer(&Upstream::default(), Some("refs/heads/other"));
        assert_eq!(text, "002funborn HEAD symref-target:refs/heads/other\n0000");
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_any_bytes(bytes: Vec<u8>, line: Vec<u8>) {
            let _ = ListRequest::parse(&bytes);
            let head = format!("{:04x}", line.len() + DIGITS).into_bytes();
            let _ = ListRequest::parse(&[b"0013command=ls-refs0001", &head[..], &line, &bytes].concat());
        }
    }
}
