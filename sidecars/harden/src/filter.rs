//! Compiles system call filters into seccomp programs that find a call by binary search.
//!
//! The library compiles a linear search, with one action for a whole program. The kernel runs a new
//! program once for every call number, and later for every call whose action depends on arguments, so the
//! length of the path matters. The library still compiles the rules on arguments.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, apply_filter, sock_filter};

use crate::HardenError;

/// Offset of the call number in `struct seccomp_data`.
const NUMBER: u32 = 0;

/// System calls and their actions.
#[derive(Debug)]
pub struct Filter {
    /// Actions by the first number of a range, which ends where the next one starts; the first starts at 0.
    ranges: BTreeMap<u32, Action>,
}

/// The action for a call.
#[derive(Debug, Clone)]
enum Action {
    Pass,
    Fail(i32),
    /// Fails with the error of the first matching rule, and passes if none matches.
    FailWhen(Vec<(SeccompRule, i32)>),
}

impl Filter {
    /// A filter that allows unlisted calls.
    #[must_use]
    pub fn passing() -> Self {
        Self::with_default(Action::Pass)
    }

    /// A filter that fails unlisted calls with this error, including calls of future kernels.
    #[must_use]
    pub fn failing(errno: i32) -> Self {
        Self::with_default(Action::Fail(errno))
    }

    fn with_default(action: Action) -> Self {
        Self { ranges: BTreeMap::from([(0, action)]) }
    }

    /// Allows these calls.
    pub fn allow(&mut self, calls: &[libc::c_long]) {
        for call in calls {
            self.put(*call, Action::Pass);
        }
    }

    /// Fails these calls with this error.
    pub fn refuse(&mut self, calls: &[libc::c_long], errno: i32) {
        for call in calls {
            self.put(*call, Action::Fail(errno));
        }
    }

    /// Fails this call with this error if one of the rules matches, and allows it otherwise. A
    /// further call for the same number appends its rules.
    pub fn refuse_when(&mut self, call: libc::c_long, rules: Vec<SeccompRule>, errno: i32) {
        let before = match u32::try_from(call).map(|number| self.action(number)) {
            Ok(Action::FailWhen(before)) => before,
            _ => Vec::new(),
        };
        let rules = rules.into_iter().map(|rule| (rule, errno));
        self.put(call, Action::FailWhen(before.into_iter().chain(rules).collect()));
    }

    /// Sets the action of one call. Ignores a negative number, which this architecture does not have.
    fn put(&mut self, call: libc::c_long, action: Action) {
        let Ok(number) = u32::try_from(call) else { return };
        let before = self.action(number);
        self.ranges.entry(number + 1).or_insert(before);
        self.ranges.insert(number, action);
    }

    fn action(&self, number: u32) -> Action {
        self.ranges.range(..=number).next_back().map_or(Action::Pass, |(_, action)| action.clone())
    }

    /// Applies the filter to this thread and its future threads and processes.
    ///
    /// # Errors
    /// [`HardenError::Filter`] if it cannot be compiled for this processor or the kernel refuses it.
    pub fn apply(&self) -> Result<(), HardenError> {
        Ok(apply_filter(&self.program()?)?)
    }

    /// Compiles the filter. A call of another architecture kills the process.
    ///
    /// # Errors
    /// [`HardenError::Filter`] if the library does not support this processor.
    pub fn program(&self) -> Result<BpfProgram, HardenError> {
        let here = std::env::consts::ARCH.try_into()?;
        let (pass, any) = (SeccompAction::Allow, SeccompAction::Errno(0));
        // Without rules the library compiles the check of the architecture, then `pass`.
        let mut program: BpfProgram = SeccompFilter::new(BTreeMap::new(), pass, any, here)?.try_into()?;
        program.pop();
        program.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER));
        let mut ranges: Vec<(u32, Action)> =
            self.ranges.iter().map(|(start, action)| (*start, action.clone())).collect();
        ranges.dedup_by(|next, before| next.1.equals(&before.1));
        program.extend(bisect(&ranges));
        Ok(program)
    }
}

/// Compiles a binary search for the range of the loaded call number.
fn bisect(ranges: &[(u32, Action)]) -> BpfProgram {
    let middle = ranges.len() / 2;
    let (lower, upper) = ranges.split_at(middle);
    match (lower, upper) {
        (_, []) => vec![ret(libc::SECCOMP_RET_ALLOW)],
        ([], [(_, action), ..]) => action.program(),
        (_, [(start, _), ..]) => {
            let lower = bisect(lower);
            let at_least = instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, *start);
            let branch = match u8::try_from(lower.len()) {
                Ok(skip) => vec![sock_filter { jt: skip, ..at_least }],
                // Too far for a conditional jump, which skips an unconditional one instead.
                Err(_) => {
                    let skip = instruction(libc::BPF_JMP | libc::BPF_JA, length(&lower));
                    vec![sock_filter { jf: 1, ..at_least }, skip]
                }
            };
            [branch, lower, bisect(upper)].concat()
        }
    }
}

impl Action {
    /// Whether two actions can share a range. Rules are never equal, as they cannot be compared.
    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pass, Self::Pass) => true,
            (Self::Fail(one), Self::Fail(another)) => one == another,
            _ => false,
        }
    }

    fn program(&self) -> BpfProgram {
        match self {
            Self::Pass => vec![ret(libc::SECCOMP_RET_ALLOW)],
            Self::Fail(errno) => vec![fail(*errno)],
            Self::FailWhen(rules) => {
                // A rule that does not match skips the instruction that follows it.
                let checks = rules.iter().flat_map(|(rule, errno)| {
                    let mut program = BpfProgram::from(rule.clone());
                    program.push(fail(*errno));
                    program
                });
                checks.chain([ret(libc::SECCOMP_RET_ALLOW)]).collect()
            }
        }
    }
}

fn fail(errno: i32) -> sock_filter {
    ret(libc::SECCOMP_RET_ERRNO | errno.unsigned_abs())
}

fn ret(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value)
}

fn instruction(code: u32, k: u32) -> sock_filter {
    // Codes have 16 bits; all used here fit into a byte.
    sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt: 0, jf: 0, k }
}

/// The number of instructions; the kernel accepts at most 4096.
fn length(program: &BpfProgram) -> u32 {
    u32::try_from(program.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition};

    use super::*;

    /// The `struct seccomp_data` of a call.
    fn call(program: &[sock_filter], number: u32, arguments: [u64; 2]) -> Vec<u8> {
        let mut data = number.to_ne_bytes().to_vec();
        // The library's first instructions check the architecture.
        data.extend(program[1].k.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        data.extend([0; 32]);
        data
    }

    /// Interprets the classic BPF instructions used here, as the kernel does.
    fn interpret(program: &[sock_filter], data: &[u8]) -> u32 {
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            at += 1;
            match code {
                0x20 => {
                    let word = &data[k as usize..k as usize + 4];
                    accumulator = u32::from_ne_bytes(word.try_into().expect("a word"));
                }
                0x54 => accumulator &= k,
                0x05 => at += k as usize,
                0x15 => at += jump(accumulator == k),
                0x25 => at += jump(accumulator > k),
                0x35 => at += jump(accumulator >= k),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn rule<const N: usize>(conditions: [(u8, Len, Op, u64); N]) -> SeccompRule {
        let conditions = conditions
            .map(|(argument, length, op, value)| SeccompCondition::new(argument, length, op, value));
        SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>().expect("conditions")).expect("rule")
    }

    /// A filter with many unordered calls, gaps and neighbours, and one call with rules.
    fn sample() -> Filter {
        let mut filter = Filter::passing();
        let even: Vec<libc::c_long> = (0..300).map(|n| (n * 74) % 598).filter(|n| *n != 56).collect();
        filter.refuse(&even, libc::EPERM);
        filter.refuse(&[435, 425, 426, 427, -1], libc::ENOSYS);
        let two = rule([(0, Len::Dword, Op::Eq, 1), (1, Len::Qword, Op::Ne, 0)]);
        let mask = rule([(0, Len::Qword, Op::MaskedEq(0xf0), 0x10)]);
        filter.refuse_when(56, vec![two], libc::EACCES);
        filter.refuse_when(56, vec![mask], libc::ENOENT);
        filter
    }

    #[test]
    fn gives_every_call_its_listed_action() {
        let program = sample().program().expect("built");
        let error = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        for number in (0..700).chain([0x4000_0000, 0x4000_0038, u32::MAX]) {
            let expected = match number {
                425..=427 | 435 => error(libc::ENOSYS),
                56 => libc::SECCOMP_RET_ALLOW,
                even if even % 2 == 0 && even < 598 => error(libc::EPERM),
                _ => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(interpret(&program, &call(&program, number, [0; 2])), expected, "{number}");
        }
    }

    #[test]
    fn one_matching_rule_suffices_and_arguments_keep_their_width() {
        let program = sample().program().expect("built");
        for (arguments, refused) in [
            ([1, 1], Some(libc::EACCES)),
            ([1, 0], None),
            ([1 << 32 | 1, 1 << 40], Some(libc::EACCES)),
            ([2, 1], None),
            ([0x1f, 0], Some(libc::ENOENT)),
            ([0x2f, 0], None),
        ] {
            let expected = refused
                .map_or(libc::SECCOMP_RET_ALLOW, |errno| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs());
            assert_eq!(interpret(&program, &call(&program, 56, arguments)), expected, "{arguments:x?}");
        }
    }

    #[test]
    fn a_failing_filter_refuses_unlisted_calls() {
        let mut filter = Filter::failing(libc::ENOSYS);
        let even: Vec<libc::c_long> = (0..400).map(|n| n * 2 % 466).collect();
        filter.allow(&even);
        filter.allow(&[3, 5]);
        filter.refuse(&[4, 101], libc::EPERM);
        filter.refuse_when(8, vec![rule([(0, Len::Dword, Op::Eq, 1)])], libc::EPERM);
        let program = filter.program().expect("built");
        let error = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        for number in (0..700).chain([0x4000_0000, 0x4000_0002, u32::MAX]) {
            let expected = match number {
                4 | 101 => error(libc::EPERM),
                3 | 5 => libc::SECCOMP_RET_ALLOW,
                even if even % 2 == 0 && even < 466 => libc::SECCOMP_RET_ALLOW,
                _ => error(libc::ENOSYS),
            };
            assert_eq!(interpret(&program, &call(&program, number, [0; 2])), expected, "{number}");
        }
        assert_eq!(interpret(&program, &call(&program, 8, [1, 0])), error(libc::EPERM));
    }

    #[test]
    fn kills_on_another_architecture_and_passes_all_without_rules() {
        let program = sample().program().expect("built");
        let mut foreign = call(&program, 1, [0; 2]);
        foreign[4] ^= 1;
        assert_eq!(interpret(&program, &foreign), libc::SECCOMP_RET_KILL_PROCESS);
        let open = Filter::passing().program().expect("built");
        assert_eq!(interpret(&open, &call(&open, 1, [0; 2])), libc::SECCOMP_RET_ALLOW);
        assert!(program.len() < 4096, "{}", program.len());
    }
}
