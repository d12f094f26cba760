//! Implements git's conversions of a file between the working tree and the repository (gitattributes(5), "Effects"),
//! without running a program of the user.
//!
//! ```text
//!  file ── filter ── working-tree-encoding ── CRLF to LF ── $Id: …$ to $Id$ ──► blob    clean
//!  blob ── $Id$ to $Id: …$ ── LF to CRLF ── working-tree-encoding ── filter ──► file    smudge
//! ```
//! The rules are the same as in git's `convert.c`. Of all filters, only the filter of Git LFS is supported.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

use crate::attributes::{PathAttributes, State};
use crate::config::Config;

/// The filter of Git LFS, as `git lfs install` names it.
const LFS: &[u8] = b"lfs";

/// The maximum size of a pointer of Git LFS in bytes.
pub const MAX_POINTER: usize = 1024;

/// The first line of a Git LFS pointer.
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\n";

/// The configuration variables that [`Settings`] reads, as a pattern for `git config --get-regexp`.
pub const KEYS: &str = r"^(core\.(autocrlf|eol)|filter\..*\.(clean|process))$";

/// The settings of the user and of a repository that affect conversions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    autocrlf: Option<AutoCrlf>,
    eol: Option<Eol>,
    /// The names of filters. The value is true if the filter has a program.
    filters: HashMap<Vec<u8>, bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AutoCrlf {
    No,
    Yes,
    Input,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Eol {
    Lf,
    CrLf,
}

/// Git's conversions of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    lines: Lines,
    ident: bool,
    encoding: Option<Encoding>,
    filter: Option<Filter>,
}

/// The conversion of line endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// Line endings stay unchanged.
    Kept,
    /// The file is text, with these line endings in the working tree.
    Text(Eol),
    /// The content decides whether the file is text. If it is, these line endings apply.
    Auto(Eol),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Encoding {
    Utf16 { big: bool, mark: Mark },
    Latin1,
    Other(Vec<u8>),
}

/// Whether a text in UTF-16 begins with a byte order mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Required,
    Forbidden,
    Written,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    Lfs,
    Program(Vec<u8>),
}

/// Why the content that git would store for a file is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unconverted {
    /// Only a program of the user could compute the content.
    #[error("its filter {0:?} is a program, which is not run")]
    Program(String),
    /// The value of `working-tree-encoding` is not supported.
    #[error("its working-tree-encoding {0:?} is not supported")]
    Encoding(String),
    /// The content of the file is not valid in its encoding.
    #[error("its content does not have its working-tree-encoding")]
    Content,
    /// The file is too large to be read into memory.
    #[error("it is too large to be converted")]
    Size,
}

/// A pointer of Git LFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    /// The SHA-256 of the content, in hexadecimal digits.
    pub id: String,
    /// The size of the content in bytes.
    pub size: u64,
}

impl Settings {
    /// Adds the variables of a repository's configuration, which override earlier variables.
    pub fn add(&mut self, config: &Config) {
        for entry in config.entries() {
            let subsection = entry.subsection.as_deref();
            // No attribute can name a filter with a longer name.
            if entry.section.len() + subsection.map_or(0, <[u8]>::len) > crate::attributes::MAX_LINE {
                continue;
            }
            let parts = [Some(&*entry.section), subsection, Some(&entry.name)];
            let key: Vec<&[u8]> = parts.into_iter().flatten().collect();
            self.set(&key.join(&b'.'), entry.value.as_deref());
        }
    }

    /// Adds the output of `git config --null --get-regexp`.
    pub fn add_listed(&mut self, listed: &[u8]) {
        for entry in listed.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            match entry.iter().position(|byte| *byte == b'\n') {
                Some(at) => self.set(&entry[..at], Some(&entry[at + 1..])),
                None => self.set(entry, None),
            }
        }
    }

    fn set(&mut self, key: &[u8], value: Option<&[u8]>) {
        let text = value.map(|value| value.to_ascii_lowercase());
        match key {
            b"core.autocrlf" if text.as_deref() == Some(b"input") => self.autocrlf = Some(AutoCrlf::Input),
            b"core.autocrlf" => {
                let is_true = crate::config::is_true(value);
                self.autocrlf = Some(if is_true { AutoCrlf::Yes } else { AutoCrlf::No });
            }
            b"core.eol" => {
                self.eol = match text.as_deref() {
                    Some(b"crlf") => Some(Eol::CrLf),
                    Some(b"lf" | b"native") => Some(Eol::Lf),
                    _ => None,
                };
            }
            key => {
                let Some(rest) = key.strip_prefix(b"filter.") else { return };
                let name = rest.strip_suffix(b".clean").or_else(|| rest.strip_suffix(b".process"));
                if let Some(name) = name {
                    *self.filters.entry(name.to_owned()).or_default() |=
                        value.is_some_and(|value| !value.is_empty());
                }
            }
        }
    }

    /// Returns the line endings of a text file whose attributes specify no line endings.
    fn text_eol(&self) -> Eol {
        match (self.autocrlf, self.eol) {
            (Some(AutoCrlf::Yes), _) => Eol::CrLf,
            (Some(AutoCrlf::Input), _) => Eol::Lf,
            (_, eol) => eol.unwrap_or(Eol::Lf),
        }
    }
}

impl Conversion {
    /// Returns the conversion of a file with these attributes.
    #[must_use]
    pub fn of(attributes: &PathAttributes, settings: &Settings) -> Self {
        let filter = match attributes.value("filter") {
            // If no program is configured for the filter, git does not convert the file.
            Some(name) if !settings.filters.get(name).copied().unwrap_or_default() => None,
            Some(LFS) => Some(Filter::Lfs),
            Some(name) => Some(Filter::Program(name.to_owned())),
            None => None,
        };
        Self {
            lines: Lines::of(attributes, settings),
            ident: attributes.state("ident") == Some(&State::Set),
            encoding: attributes.value("working-tree-encoding").and_then(Encoding::of),
            filter,
        }
    }

    /// Whether the file and the blob have the same bytes.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        *self == Self { lines: Lines::Kept, ident: false, encoding: None, filter: None }
    }

    /// Whether the blob is a Git LFS pointer.
    #[must_use]
    pub fn is_lfs(&self) -> bool {
        self.filter == Some(Filter::Lfs)
    }

    /// Returns why the blob cannot be computed, whatever the content of the file is. `None` if the blob can be
    /// computed.
    #[must_use]
    pub fn obstacle(&self) -> Option<Unconverted> {
        let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        match (&self.filter, &self.encoding) {
            (Some(Filter::Program(name)), _) => Some(Unconverted::Program(text(name))),
            (_, Some(Encoding::Other(name))) => Some(Unconverted::Encoding(text(name))),
            _ => None,
        }
    }

    /// Whether the conversion drops text of a file with this content: the file contains a `$Id: …$` with text that is
    /// not an id.
    #[must_use]
    pub fn hides_text(&self, content: &[u8]) -> bool {
        let is_id = |text: &[u8]| {
            let id = text.strip_prefix(b" ").and_then(|text| text.strip_suffix(b" ")).unwrap_or(text);
            matches!(id.len(), 0 | 40 | 64) && id.iter().all(u8::is_ascii_hexdigit)
        };
        let mut from = 0;
        while let Some((begin, end)) = next_expanded(content, from).filter(|_| self.ident) {
            if !is_id(&content[begin + 4..end - 1]) {
                return true;
            }
            from = end;
        }
        false
    }

    /// Converts the content of a file to the blob. `before` is the blob of the file in the index. If the file has no
    /// declared type, the line endings depend on `before`. For Git LFS, the content becomes a pointer.
    ///
    /// # Errors
    /// Returns [`Unconverted`].
    pub fn clean<'a>(&self, content: &'a [u8], before: Option<&[u8]>) -> Result<Cow<'a, [u8]>, Unconverted> {
        if let Some(obstacle) = self.obstacle() {
            return Err(obstacle);
        }
        let content = match self.is_lfs() {
            true => Pointer::cleaned(content),
            false => Cow::Borrowed(content),
        };
        let content = match &self.encoding {
            Some(encoding) if !content.is_empty() => Cow::Owned(encoding.decode(&content)?),
            _ => content,
        };
        let content = self.lines.clean(content, before);
        Ok(if self.ident { collapse(content) } else { content })
    }

    /// Converts the content of a blob to the file. `id` is the blob's id in hexadecimal digits.
    ///
    /// # Errors
    /// Returns [`Unconverted`]. A Git LFS pointer is always an error, because the file's content is stored elsewhere.
    pub fn smudge<'a>(&self, blob: &'a [u8], id: &str) -> Result<Cow<'a, [u8]>, Unconverted> {
        if let Some(obstacle) = self.obstacle() {
            return Err(obstacle);
        }
        if self.is_lfs() && Pointer::parse(blob).is_some() {
            return Err(Unconverted::Program(String::from_utf8_lossy(LFS).into_owned()));
        }
        let content = if self.ident { expand(blob, id) } else { Cow::Borrowed(blob) };
        let content = self.lines.smudge(content);
        match &self.encoding {
            Some(encoding) if !content.is_empty() => encoding.encode(&content).map(Cow::Owned),
            _ => Ok(content),
        }
    }
}

impl Lines {
    fn of(attributes: &PathAttributes, settings: &Settings) -> Self {
        /// The meaning of the attribute `text`, or of the older `crlf`.
        enum Kind {
            Text,
            Input,
            Binary,
            Auto,
        }
        let kind = |name: &str| match attributes.state(name)? {
            State::Set => Some(Kind::Text),
            State::Unset => Some(Kind::Binary),
            State::Value(value) if value == b"input" => Some(Kind::Input),
            State::Value(value) if value == b"auto" => Some(Kind::Auto),
            _ => None,
        };
        let eol = match attributes.value("eol") {
            Some(b"lf") => Some(Eol::Lf),
            Some(b"crlf") => Some(Eol::CrLf),
            _ => None,
        };
        match (kind("text").or_else(|| kind("crlf")), eol) {
            (Some(Kind::Binary), _) => Self::Kept,
            (Some(Kind::Auto), eol) => Self::Auto(eol.unwrap_or_else(|| settings.text_eol())),
            (_, Some(eol)) => Self::Text(eol),
            (Some(Kind::Input), None) => Self::Text(Eol::Lf),
            (Some(Kind::Text), None) => Self::Text(settings.text_eol()),
            (None, None) => match settings.autocrlf {
                Some(AutoCrlf::Yes) => Self::Auto(Eol::CrLf),
                Some(AutoCrlf::Input) => Self::Auto(Eol::Lf),
                Some(AutoCrlf::No) | None => Self::Kept,
            },
        }
    }

    fn clean<'a>(self, content: Cow<'a, [u8]>, before: Option<&[u8]>) -> Cow<'a, [u8]> {
        let counts = Counts::of(&content);
        let is_kept = match self {
            Self::Kept => true,
            Self::Text(_) => false,
            // If the blob in the index contains CRLF, the CRLF of the file stays.
            Self::Auto(_) => counts.is_binary() || before.is_some_and(has_crlf),
        };
        if is_kept || counts.crlf == 0 {
            return content;
        }
        let mut cleaned = Vec::with_capacity(content.len());
        for (at, byte) in content.iter().enumerate() {
            if *byte != b'\r' || content.get(at + 1) != Some(&b'\n') {
                cleaned.push(*byte);
            }
        }
        Cow::Owned(cleaned)
    }

    fn smudge(self, content: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
        let counts = Counts::of(&content);
        let is_converted = match self {
            Self::Text(Eol::CrLf) => true,
            Self::Auto(Eol::CrLf) => counts.crlf == 0 && !counts.is_binary(),
            Self::Kept | Self::Text(Eol::Lf) | Self::Auto(Eol::Lf) => false,
        };
        if !is_converted || counts.lone_lf == 0 {
            return content;
        }
        let mut smudged = Vec::with_capacity(content.len() + counts.lone_lf);
        for (at, byte) in content.iter().enumerate() {
            if *byte == b'\n' && (at == 0 || content[at - 1] != b'\r') {
                smudged.push(b'\r');
            }
            smudged.push(*byte);
        }
        Cow::Owned(smudged)
    }
}

/// The counts of bytes that git uses to guess whether a content is text.
#[derive(Debug, Default)]
struct Counts {
    nul: usize,
    lone_cr: usize,
    lone_lf: usize,
    crlf: usize,
    printable: usize,
    other: usize,
}

impl Counts {
    fn of(content: &[u8]) -> Self {
        let mut counts = Self::default();
        let mut at = 0;
        while let Some(byte) = content.get(at) {
            at += 1;
            match byte {
                b'\r' if content.get(at) == Some(&b'\n') => {
                    counts.crlf += 1;
                    at += 1;
                }
                b'\r' => counts.lone_cr += 1,
                b'\n' => counts.lone_lf += 1,
                0x08 | b'\t' | 0x0c | 0x1b => counts.printable += 1,
                0 => {
                    counts.nul += 1;
                    counts.other += 1;
                }
                0x01..=0x1f | 0x7f => counts.other += 1,
                _ => counts.printable += 1,
            }
        }
        // The end-of-file character of older systems does not count as a control character.
        if content.last() == Some(&0x1a) {
            counts.other -= 1;
        }
        counts
    }

    fn is_binary(&self) -> bool {
        self.lone_cr > 0 || self.nul > 0 || self.printable >> 7 < self.other
    }
}

/// Whether a blob is text with CRLF.
fn has_crlf(blob: &[u8]) -> bool {
    let counts = Counts::of(blob);
    counts.crlf > 0 && !counts.is_binary()
}

/// Returns the positions at which the next `$Id: …$` begins and ends, both dollar signs included.
fn next_expanded(content: &[u8], from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        at += find(content.get(at..)?, b"$Id:")?;
        let inside = at + 4;
        let end = content[inside..].iter().position(|byte| matches!(byte, b'$' | b'\n'))?;
        if content[inside + end] == b'$' {
            return Some((at, inside + end + 1));
        }
        at = inside + end;
    }
}

fn find(content: &[u8], text: &[u8]) -> Option<usize> {
    content.windows(text.len()).position(|window| window == text)
}

/// Replaces each `$Id: …$` by `$Id$`.
fn collapse(content: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let (mut collapsed, mut from) = (Vec::new(), 0);
    while let Some((begin, end)) = next_expanded(&content, from) {
        collapsed.extend_from_slice(&content[from..begin]);
        collapsed.extend_from_slice(b"$Id$");
        from = end;
    }
    if from == 0 {
        return content;
    }
    collapsed.extend_from_slice(&content[from..]);
    Cow::Owned(collapsed)
}

/// Replaces each `$Id$` by `$Id: …$` with the id of the blob. A `$Id: …$` that is already expanded stays unchanged.
fn expand<'a>(blob: &'a [u8], id: &str) -> Cow<'a, [u8]> {
    let (mut expanded, mut from) = (Vec::new(), 0);
    while let Some(at) = find(&blob[from..], b"$Id$") {
        expanded.extend_from_slice(&blob[from..from + at]);
        expanded.extend_from_slice(format!("$Id: {id} $").as_bytes());
        from += at + 4;
    }
    if from == 0 {
        return Cow::Borrowed(blob);
    }
    expanded.extend_from_slice(&blob[from..]);
    Cow::Owned(expanded)
}

impl Encoding {
    /// Returns the encoding of this name. `None` for UTF-8, which needs no conversion.
    fn of(name: &[u8]) -> Option<Self> {
        let upper = name.to_ascii_uppercase();
        let utf16 = |big, mark| Some(Self::Utf16 { big, mark });
        match upper.as_slice() {
            b"UTF-8" | b"UTF8" => None,
            b"UTF-16" | b"UTF16" => utf16(false, Mark::Required),
            b"UTF-16LE" | b"UTF16LE" => utf16(false, Mark::Forbidden),
            b"UTF-16BE" | b"UTF16BE" => utf16(true, Mark::Forbidden),
            b"UTF-16LE-BOM" | b"UTF16LE-BOM" => utf16(false, Mark::Written),
            b"UTF-16BE-BOM" | b"UTF16BE-BOM" => utf16(true, Mark::Written),
            b"ISO-8859-1" | b"LATIN1" | b"LATIN-1" => Some(Self::Latin1),
            _ => Some(Self::Other(name.to_owned())),
        }
    }

    fn decode(&self, content: &[u8]) -> Result<Vec<u8>, Unconverted> {
        match self {
            Self::Utf16 { big, mark } => decode_utf16(content, *big, *mark),
            Self::Latin1 => Ok(content.iter().map(|byte| char::from(*byte)).collect::<String>().into_bytes()),
            Self::Other(name) => Err(Unconverted::Encoding(String::from_utf8_lossy(name).into_owned())),
        }
    }

    fn encode(&self, content: &[u8]) -> Result<Vec<u8>, Unconverted> {
        let text = std::str::from_utf8(content).map_err(|_| Unconverted::Content)?;
        match self {
            Self::Utf16 { big, mark } => {
                let bytes = |unit: u16| if *big { unit.to_be_bytes() } else { unit.to_le_bytes() };
                let mark = (*mark != Mark::Forbidden).then_some(0xfeff);
                Ok(mark.into_iter().chain(text.encode_utf16()).flat_map(bytes).collect())
            }
            Self::Latin1 => text.chars().map(|c| u8::try_from(c).map_err(|_| Unconverted::Content)).collect(),
            Self::Other(name) => Err(Unconverted::Encoding(String::from_utf8_lossy(name).into_owned())),
        }
    }
}

fn decode_utf16(content: &[u8], big: bool, mark: Mark) -> Result<Vec<u8>, Unconverted> {
    let marked = match content {
        [0xff, 0xfe, ..] => Some(false),
        [0xfe, 0xff, ..] => Some(true),
        _ => None,
    };
    let big = match (mark, marked) {
        (Mark::Forbidden, Some(_)) | (Mark::Required, None) => return Err(Unconverted::Content),
        (Mark::Forbidden, None) => big,
        (Mark::Required | Mark::Written, marked) => marked.unwrap_or(false),
    };
    let text = if marked.is_some() { &content[2..] } else { content };
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Unconverted::Content);
    }
    let units =
        pairs.iter().map(|pair| if big { u16::from_be_bytes(*pair) } else { u16::from_le_bytes(*pair) });
    let text: Result<String, _> = char::decode_utf16(units).collect();
    text.map(String::into_bytes).map_err(|_| Unconverted::Content)
}

impl Pointer {
    /// Parses a pointer. `None` if the blob is not a pointer.
    #[must_use]
    pub fn parse(blob: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(blob).ok().filter(|text| text.len() <= MAX_POINTER)?;
        let rest = text.strip_prefix(POINTER)?;
        let line = |name: &str| rest.lines().find_map(|line| line.strip_prefix(name));
        let id = line("oid sha256:")?;
        let is_id = id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let size = line("size ")?.parse().ok()?;
        is_id.then(|| Self { id: id.to_owned(), size })
    }

    /// Creates the pointer for a content with this SHA-256 and this size in bytes.
    pub(crate) fn new(hash: &[u8], size: u64) -> Self {
        Self { id: hash.iter().map(|byte| format!("{byte:02x}")).collect(), size }
    }

    /// Computes the pointer for a content.
    ///
    /// # Errors
    /// Returns the error of the reader.
    pub fn of(content: &mut impl Read) -> io::Result<Self> {
        let (mut hash, mut size, mut part) = (Sha256::new(), 0, vec![0; 64 << 10]);
        loop {
            let length = content.read(&mut part)?;
            if length == 0 {
                return Ok(Self::new(&hash.finalize(), size));
            }
            size += length as u64;
            hash.update(&part[..length]);
        }
    }

    /// Returns the text of the pointer.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{POINTER}oid sha256:{}\nsize {}\n", self.id, self.size)
    }

    /// Replaces a content by its pointer, as Git LFS does. An empty file and a pointer stay unchanged.
    fn cleaned(content: &[u8]) -> Cow<'_, [u8]> {
        if content.is_empty() || Self::parse(content).is_some() {
            return Cow::Borrowed(content);
        }
        let mut hash = Sha256::new();
        hash.update(content);
        let id = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Cow::Owned(Self { id, size: content.len() as u64 }.text().into_bytes())
    }
}

#[cfg(test)]
mod tests;
