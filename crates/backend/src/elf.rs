//! Checks whether an ELF file is a static program that can run in containers, and reads its build id. The functions
//! read only the file's tables, because reading the whole program takes longer than all queries to an engine.
//!
//! `xtask` also compiles this file, to check its own builds by the same rules. The file therefore uses only the
//! standard library.

use std::fmt::Write;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

/// The program header of the dynamic section. A static position-independent program has this section too.
const PT_DYNAMIC: u32 = 2;
/// The program header that names the interpreter which loads the program.
const PT_INTERP: u32 = 3;
/// The program header of notes.
const PT_NOTE: u32 = 4;
/// The type of the dynamic entry that ends the dynamic section.
const DT_NULL: u64 = 0;
/// The type of the dynamic entry that names a required shared library.
const DT_NEEDED: u64 = 1;
/// The type of the note that contains the build id. The linker computes this id as a hash of the program
/// (`--build-id`).
const NT_GNU_BUILD_ID: u32 = 3;
/// The length limit of a build id in bytes. Linkers write 8 to 32.
const BUILD_ID_MAX: usize = 64;
/// The error for a file that ends inside one of its tables.
const TRUNCATED: Why = "is truncated";

/// Why a program cannot be used, as the end of a sentence that begins with the program's name.
pub(crate) type Why = &'static str;

/// Fails unless the file is a 64-bit little-endian ELF program that needs no interpreter and no shared library.
pub(crate) fn expect_static(program: &File) -> Result<(), Why> {
    for (kind, offset, _) in headers(program)? {
        match kind {
            PT_INTERP => return Err("is dynamic: it names an interpreter"),
            PT_DYNAMIC => expect_no_library(program, offset)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns the program's processor architecture, as container engines name it (`amd64`, `arm64`). `None` for other
/// architectures.
pub(crate) fn architecture(program: &File) -> Option<&'static str> {
    match u16::from_le_bytes(bytes(program, 18).ok()?) {
        62 => Some("amd64"),
        183 => Some("arm64"),
        _ => None,
    }
}

/// Returns the build id in hexadecimal. Different outputs of the linker have different ids. A change of the file after
/// linking does not change the id.
pub(crate) fn build_id(program: &File) -> Result<String, Why> {
    for (kind, offset, size) in headers(program)? {
        // No file has 2^62 bytes. With this check, the sums below cannot overflow.
        let end = offset.checked_add(size).filter(|end| *end < 1 << 62).ok_or(TRUNCATED)?;
        let mut at = offset;
        while kind == PT_NOTE && at < end {
            let name = half(program, at)?;
            let length = half(program, at + 4)?;
            let content = at + 12 + u64::from(name).next_multiple_of(4);
            let size = usize::try_from(length).map_err(|_| TRUNCATED)?;
            if half(program, at + 8)? == NT_GNU_BUILD_ID
                && name == 4
                && &bytes(program, at + 12)? == b"GNU\0"
                && (1..=BUILD_ID_MAX).contains(&size)
            {
                let mut id = [0; BUILD_ID_MAX];
                read(program, content, &mut id[..size])?;
                return Ok(id[..size].iter().fold(String::new(), |mut text, byte| {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{byte:02x}");
                    text
                }));
            }
            at = content + u64::from(length).next_multiple_of(4);
        }
    }
    Err("has no build id")
}

/// Returns the type, the offset and the size of each segment from the program headers.
fn headers(program: &File) -> Result<Vec<(u32, u64, u64)>, Why> {
    if bytes(program, 0).is_ok_and(|magic| &magic != b"\x7fELF\x02\x01") {
        return Err("is not a 64-bit little-endian ELF program");
    }
    let table = word(program, 32)?;
    let size = u64::from(u16::from_le_bytes(bytes(program, 54)?));
    let count = u64::from(u16::from_le_bytes(bytes(program, 56)?));
    let header = |entry| {
        let at = table.checked_add(entry * size).ok_or(TRUNCATED)?;
        Ok((half(program, at)?, word(program, at.saturating_add(8))?, word(program, at.saturating_add(32))?))
    };
    (0..count).map(header).collect()
}

fn expect_no_library(program: &File, mut at: u64) -> Result<(), Why> {
    loop {
        match word(program, at)? {
            DT_NULL => return Ok(()),
            DT_NEEDED => return Err("is dynamic: it needs a shared library"),
            _ => at = at.checked_add(16).ok_or(TRUNCATED)?,
        }
    }
}

fn half(program: &File, at: u64) -> Result<u32, Why> {
    Ok(u32::from_le_bytes(bytes(program, at)?))
}

fn word(program: &File, at: u64) -> Result<u64, Why> {
    Ok(u64::from_le_bytes(bytes(program, at)?))
}

fn bytes<const N: usize>(program: &File, at: u64) -> Result<[u8; N], Why> {
    let mut bytes = [0; N];
    read(program, at, &mut bytes)?;
    Ok(bytes)
}

fn read(program: &File, at: u64, into: &mut [u8]) -> Result<(), Why> {
    program.read_exact_at(into, at).map_err(|error| match error.kind() {
        // The kernel refuses offsets above 2^63.
        ErrorKind::UnexpectedEof | ErrorKind::InvalidInput => TRUNCATED,
        _ => "cannot be read",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a file with this content.
    fn file(content: &[u8]) -> File {
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(content, 0).expect("written");
        file
    }

    /// Creates an ELF file whose program headers have these types and all refer to the same content.
    fn program(kinds: &[u32], content: &[u8]) -> Vec<u8> {
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = u8::try_from(kinds.len()).expect("few");
        let section = 64 + 56 * kinds.len() as u64;
        for kind in kinds {
            elf.extend_from_slice(&kind.to_le_bytes());
            elf.extend_from_slice(&[0; 4]);
            elf.extend_from_slice(&section.to_le_bytes());
            elf.extend_from_slice(&[0; 16]);
            elf.extend_from_slice(&(content.len() as u64).to_le_bytes());
            elf.extend_from_slice(&[0; 16]);
        }
        elf.extend_from_slice(content);
        elf
    }

    fn dynamic(tags: &[u64]) -> Vec<u8> {
        tags.iter().flat_map(|tag| tag.to_le_bytes().into_iter().chain([0; 8])).collect()
    }

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for half in [name.len(), content.len()] {
            note.extend_from_slice(&u32::try_from(half).expect("short").to_le_bytes());
        }
        note.extend_from_slice(&kind.to_le_bytes());
        for part in [name, content] {
            note.extend_from_slice(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn accepts_only_programs_without_interpreter_and_libraries() {
        for (kinds, tags, verdict) in [
            (&[1, 6][..], &[][..], true),
            (&[1, 2], &[5, 0, 1], true),
            (&[1, 2], &[5, 1, 0], false),
            (&[1, 3], &[], false),
            // A truncated dynamic section, which does not end with `DT_NULL`.
            (&[2], &[5], false),
        ] {
            let program = file(&program(kinds, &dynamic(tags)));
            assert_eq!(expect_static(&program).is_ok(), verdict, "{kinds:?} {tags:?}");
        }
        for cut in [0, 5, 40, 66] {
            assert!(expect_static(&file(&program(&[1], &[])[..cut])).is_err(), "{cut}");
        }
    }

    #[test]
    fn finds_the_build_id_among_the_notes() {
        let id = note(b"GNU\0", NT_GNU_BUILD_ID, &[0xab, 0x01, 0x02]);
        let others = [note(b"GNU\0", 1, &[7; 5]), note(b"FreeBSD\0", NT_GNU_BUILD_ID, &[8; 4])].concat();
        let id_of = |kinds: &[u32], content: &[u8]| build_id(&file(&program(kinds, content)));
        assert_eq!(id_of(&[1, 4], &[others.clone(), id.clone()].concat()), Ok("ab0102".to_owned()));
        assert_eq!(id_of(&[4], &id), Ok("ab0102".to_owned()));
        for (kinds, content) in [(&[1][..], id.clone()), (&[4], others), (&[], id.clone())] {
            assert_eq!(id_of(kinds, &content), Err("has no build id"), "{kinds:?}");
        }
        assert_eq!(id_of(&[4], &id[..14]), Err(TRUNCATED));
        assert_eq!(id_of(&[4], &note(b"GNU\0", NT_GNU_BUILD_ID, &[1; 65])), Err("has no build id"));
    }

    #[test]
    fn no_content_causes_a_panic() {
        let id = program(&[4, 2], &note(b"GNU\0", NT_GNU_BUILD_ID, &[1; 20]));
        for at in 0..id.len() {
            for byte in [0x7f, 0xff] {
                let mut damaged = id.clone();
                damaged[at..(at + 8).min(id.len())].fill(byte);
                let damaged = file(&damaged);
                let _ = (build_id(&damaged), expect_static(&damaged), architecture(&damaged));
            }
        }
    }

    #[test]
    fn rejects_this_dynamic_test_program() {
        let own = File::open(std::env::current_exe().expect("own path")).expect("own program");
        assert!(architecture(&own).is_some());
        assert!(expect_static(&own).expect_err("dynamic").contains("dynamic"));
    }
}
