//! Rules about the machine: power, processes, disks.

use super::{Found, Rule};
use crate::call::Call;

/// Programs that format, partition or wipe disks.
const FORMATTERS: &[&str] = &[
    "blkdiscard",
    "cfdisk",
    "cryptsetup",
    "debugfs",
    "fdisk",
    "gdisk",
    "lvremove",
    "mdadm",
    "mke2fs",
    "mkswap",
    "parted",
    "pvremove",
    "sfdisk",
    "sgdisk",
    "vgremove",
    "wipefs",
    "zpool",
];
/// Programs that end or restart the machine.
const POWER: &[&str] = &["halt", "kexec", "poweroff", "reboot", "shutdown", "systemctl", "init", "telinit"];

pub(super) fn check(call: &Call<'_>) -> Vec<Found> {
    [power(call), disks(call), processes(call)].into_iter().flatten().collect()
}

fn power(call: &Call<'_>) -> Option<Found> {
    let operand = call.operands().next().map(|text| text.value.as_str());
    let ends = match call.program {
        "systemctl" => call.operands().any(|word| {
            matches!(
                word.value.as_str(),
                "poweroff"
                    | "reboot"
                    | "halt"
                    | "kexec"
                    | "emergency"
                    | "rescue"
                    | "suspend"
                    | "hibernate"
                    | "exit"
            )
        }),
        "init" | "telinit" => matches!(operand, Some("0" | "1" | "6")),
        program => POWER.contains(&program),
    };
    ends.then(|| (Rule::PowerOff, "ends or restarts the machine".to_owned()))
}

fn disks(call: &Call<'_>) -> Option<Found> {
    let program = call.program;
    let formats =
        program.starts_with("mkfs") || program.starts_with("mkdosfs") || FORMATTERS.contains(&program);
    let lists = call.has(&['l', 'V'], &["list", "version", "help", "list-columns", "dump"])
        && program != "cryptsetup"
        || call
            .operands()
            .next()
            .is_some_and(|word| matches!(word.value.as_str(), "list" | "status" | "luksDump"));
    (formats && !lists).then(|| (Rule::FormatDisk, "formats, partitions or wipes a disk".to_owned()))
}

fn processes(call: &Call<'_>) -> Option<Found> {
    let values = || call.arguments().iter().map(|text| text.value.as_str());
    let ends = match call.program {
        "kill" => {
            // The first word may be a signal: `kill -1` sends SIGHUP to no process, and `kill -9 -1` ends every
            // process.
            let is_signal = |word: &str| word.starts_with('-') && word != "--";
            let named = values().next().is_some_and(|word| matches!(word, "-s" | "-n" | "--signal"));
            let skipped = if named { 2 } else { usize::from(values().next().is_some_and(is_signal)) };
            values().skip(skipped).any(|word| matches!(word, "-1" | "1" | "0"))
        }
        "killall5" => true,
        "pkill" | "killall" => {
            call.operands().any(|word| matches!(word.value.as_str(), "." | ".*" | "" | "*" | "^"))
                || call.has(&['u', 'U'], &["user", "euid", "uid"]) && call.operands().count() <= 1
        }
        _ => false,
    };
    ends.then(|| (Rule::KillEverything, "ends each process that it can".to_owned()))
}
