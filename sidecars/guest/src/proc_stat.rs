//! Reads the processes of the pid namespace from `/proc` (proc(5)).

/// The data of one process in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) parent: i32,
    pub(crate) session: i32,
    /// The CPU time in clock ticks, including the CPU time of reaped children.
    pub(crate) ticks: u64,
    pub(crate) resident_pages: u64,
}

impl Stat {
    /// Reads the data of a process. Returns `None` if the process does not exist or has exited.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::read(pid).filter(|(runs, _)| *runs).map(|(_, stat)| stat)
    }

    /// Reads the data of a process that may have exited, but has not been reaped.
    pub(crate) fn of_unreaped(pid: i32) -> Option<Self> {
        Self::read(pid).map(|(_, stat)| stat)
    }

    fn read(pid: i32) -> Option<(bool, Self)> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line. Also returns whether the process has not exited.
    fn parse(text: &str) -> Option<(bool, Self)> {
        // The second field is a name in parentheses that may contain any text.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        // The fields after the state. Field 1 is the parent, field 3 is the session, fields 11 to 14 are times, and
        // field 21 is the resident memory.
        let fields: Vec<i64> = fields.take(21).map(|field| field.parse().unwrap_or(0)).collect();
        let field = |number: usize| fields.get(number - 1).copied().unwrap_or(0);
        let id = |number: usize| i32::try_from(field(number)).unwrap_or(0);
        let amount = |number: usize| u64::try_from(field(number)).unwrap_or(0);
        let stat = Self {
            parent: id(1),
            session: id(3),
            ticks: (11..=14).map(amount).sum(),
            resident_pages: amount(21),
        };
        Some((!matches!(state, "Z" | "X"), stat))
    }
}

/// Returns the ids of all processes in the pid namespace.
pub(crate) fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_writes() {
        let line =
            "42 (a) b (c) S 1 42 40 34816 42 4194304 100 0 0 0 7 5 3 1 20 0 1 0 900 1000000 250 1844 1 1 0";
        let stat = || Stat { parent: 1, session: 40, ticks: 16, resident_pages: 250 };
        assert_eq!(Stat::parse(line), Some((true, stat())));
        assert_eq!(Stat::parse(&line.replace(") S", ") Z")), Some((false, stat())), "a zombie");
        for broken in ["", "42", "42 (a", "42 (a)"] {
            assert_eq!(Stat::parse(broken), None, "{broken:?}");
        }
        let own = i32::try_from(std::process::id()).expect("a process id");
        assert!(pids().any(|pid| pid == own));
        assert!(Stat::of(own).is_some_and(|own| own.resident_pages > 0));
    }
}
