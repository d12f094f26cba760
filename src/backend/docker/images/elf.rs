//! Checks that a program is a static ELF file. `xtask` also compiles this file, to check its own builds by the same
//! rules, so the file uses only the standard library.

/// Program header of the dynamic section. A static position-independent program has this section too.
const PT_DYNAMIC: u32 = 2;
/// Program header that names the interpreter which loads the program.
const PT_INTERP: u32 = 3;
/// Dynamic entry that ends the section.
const DT_NULL: u64 = 0;
/// Dynamic entry that names a required shared library.
const DT_NEEDED: u64 = 1;
/// The error for a program that needs an interpreter. The first page of the file is enough to detect it.
pub(crate) const INTERPRETED: Why = "is dynamic: it names an interpreter";
/// The error for a file that ends inside one of its tables.
const TRUNCATED: Why = "is truncated";

/// Why a program cannot be used, as the end of a sentence that begins with its name.
pub(crate) type Why = &'static str;

/// Fails unless these bytes are a 64-bit little-endian ELF program that needs no interpreter and no shared library.
pub(crate) fn expect_static(program: &[u8]) -> Result<(), Why> {
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return Err("is not a 64-bit little-endian ELF program");
    }
    let table = place(word(program, 32)?)?;
    let size = usize::from(u16::from_le_bytes(bytes(program, 54)?));
    let count = usize::from(u16::from_le_bytes(bytes(program, 56)?));
    for entry in 0..count {
        let header = table.checked_add(entry * size).ok_or(TRUNCATED)?;
        match u32::from_le_bytes(bytes(program, header)?) {
            PT_INTERP => return Err(INTERPRETED),
            PT_DYNAMIC => expect_no_library(program, place(word(program, header + 8)?)?)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns the program's processor architecture, as container engines name it (`amd64`, `arm64`). `None` for other
/// ones.
pub(crate) fn architecture(program: &[u8]) -> Option<&'static str> {
    match u16::from_le_bytes(bytes(program, 18).ok()?) {
        62 => Some("amd64"),
        183 => Some("arm64"),
        _ => None,
    }
}

fn expect_no_library(program: &[u8], mut at: usize) -> Result<(), Why> {
    loop {
        match word(program, at)? {
            DT_NULL => return Ok(()),
            DT_NEEDED => return Err("is dynamic: it needs a shared library"),
            _ => at += 16,
        }
    }
}

fn place(offset: u64) -> Result<usize, Why> {
    usize::try_from(offset).map_err(|_| TRUNCATED)
}

fn word(program: &[u8], at: usize) -> Result<u64, Why> {
    Ok(u64::from_le_bytes(bytes(program, at)?))
}

fn bytes<const N: usize>(program: &[u8], at: usize) -> Result<[u8; N], Why> {
    let slice = at.checked_add(N).and_then(|end| program.get(at..end)).ok_or(TRUNCATED)?;
    slice.try_into().map_err(|_| TRUNCATED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file that has program headers of these types and a dynamic section with these tags.
    fn program(kinds: &[u32], tags: &[u64]) -> Vec<u8> {
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
            elf.extend_from_slice(&[0; 40]);
        }
        for tag in tags {
            elf.extend_from_slice(&tag.to_le_bytes());
            elf.extend_from_slice(&[0; 8]);
        }
        elf
    }

    #[test]
    fn accepts_only_programs_without_interpreter_and_libraries() {
        for (kinds, tags, verdict) in [
            (&[1, 6][..], &[][..], true),
            (&[1, 2], &[5, 0, 1], true),
            (&[1, 2], &[5, 1, 0], false),
            (&[1, 3], &[], false),
            // A truncated section, which has no end entry.
            (&[2], &[5], false),
        ] {
            assert_eq!(expect_static(&program(kinds, tags)).is_ok(), verdict, "{kinds:?} {tags:?}");
        }
        for cut in [0, 5, 40, 66] {
            assert!(expect_static(&program(&[1], &[])[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn rejects_this_dynamic_test_program() {
        let own = std::fs::read(std::env::current_exe().expect("own path")).expect("own program");
        assert!(architecture(&own).is_some());
        assert!(expect_static(&own).expect_err("dynamic").contains("dynamic"));
    }
}
