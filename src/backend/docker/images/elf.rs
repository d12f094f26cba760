//! Whether a program needs anything of the system it is started on. Also compiled into `xtask`, which checks
//! what it built by the same rules, so this file stands on the standard library alone.

/// Program header: where the dynamic section is. A static program that may be loaded anywhere has one.
const PT_DYNAMIC: u32 = 2;
/// Program header: an interpreter has to load it.
const PT_INTERP: u32 = 3;
/// Dynamic entry: the end.
const DT_NULL: u64 = 0;
/// Dynamic entry: a shared library.
const DT_NEEDED: u64 = 1;
/// Said of a program that a loader of the system's has to load. Its first page tells.
pub(crate) const INTERPRETED: Why = "is dynamic: it names an interpreter";
/// Said of a file that ends before its own tables do.
const CUT: Why = "is cut short";

/// Why a program cannot be taken, as the rest of a sentence that begins with its name.
pub(crate) type Why = &'static str;

/// Fails unless these bytes are a 64-bit little-endian ELF program that asks for no interpreter and no
/// shared library.
pub(crate) fn expect_static(program: &[u8]) -> Result<(), Why> {
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return Err("is no 64-bit little-endian ELF program");
    }
    let table = place(word(program, 32)?)?;
    let size = usize::from(u16::from_le_bytes(bytes(program, 54)?));
    let count = usize::from(u16::from_le_bytes(bytes(program, 56)?));
    for entry in 0..count {
        let header = table.checked_add(entry * size).ok_or(CUT)?;
        match u32::from_le_bytes(bytes(program, header)?) {
            PT_INTERP => return Err(INTERPRETED),
            PT_DYNAMIC => expect_no_library(program, place(word(program, header + 8)?)?)?,
            _ => {}
        }
    }
    Ok(())
}

/// The processor it is for, in an engine's word.
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
    usize::try_from(offset).map_err(|_| CUT)
}

fn word(program: &[u8], at: usize) -> Result<u64, Why> {
    Ok(u64::from_le_bytes(bytes(program, at)?))
}

fn bytes<const N: usize>(program: &[u8], at: usize) -> Result<[u8; N], Why> {
    let slice = at.checked_add(N).and_then(|end| program.get(at..end)).ok_or(CUT)?;
    slice.try_into().map_err(|_| CUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with program headers of these types, and a dynamic section of these tags.
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
    fn only_a_program_that_needs_nothing_is_static() {
        for (kinds, tags, verdict) in [
            (&[1, 6][..], &[][..], true),
            (&[1, 2], &[5, 0, 1], true),
            (&[1, 2], &[5, 1, 0], false),
            (&[1, 3], &[], false),
            // Cut short: the section never ends.
            (&[2], &[5], false),
        ] {
            assert_eq!(expect_static(&program(kinds, tags)).is_ok(), verdict, "{kinds:?} {tags:?}");
        }
        for cut in [0, 5, 40, 66] {
            assert!(expect_static(&program(&[1], &[])[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn this_test_itself_is_dynamic() {
        let own = std::fs::read(std::env::current_exe().expect("own path")).expect("own program");
        assert!(architecture(&own).is_some());
        assert!(expect_static(&own).expect_err("dynamic").contains("dynamic"));
    }
}
