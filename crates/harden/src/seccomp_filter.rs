//! Compiles system call filters into seccomp programs that look up a call by binary search.
//!
//! The `seccompiler` library compiles a linear search instead, and supports only one action for matching calls in a
//! program. When a program is installed, the kernel runs it once for each call number. Later the kernel runs it only
//! for calls whose action depends on arguments. The number of executed instructions therefore matters. The library
//! still compiles the rules that check arguments.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, apply_filter, sock_filter};

use crate::HardenError;

/// The offset of the call number in `struct seccomp_data`, in bytes.
const NUMBER: u32 = 0;

/// A system call filter, which maps calls to actions.
#[derive(Debug)]
pub struct Filter {
    /// The actions. Each key is the first call number to which the action applies. The action applies to all numbers
    /// below the next key. The first key is 0.
    ranges: BTreeMap<u32, Action>,
}

/// What the kernel does with a system call.
#[derive(Debug, Clone)]
enum Action {
    Pass,
    Fail(i32),
    /// The call fails with the error of the first rule that matches. If no rule matches, the call is allowed.
    FailWhen(Vec<(SeccompRule, i32)>),
}

impl Filter {
    /// Makes a filter that allows all calls that are not listed.
    #[must_use]
    pub fn passing() -> Self {
        Self::with_default(Action::Pass)
    }

    /// Makes a filter in which all calls that are not listed fail with `errno`, including calls that future
    /// kernels add.
    #[must_use]
    pub fn failing(errno: i32) -> Self {
        Self::with_default(Action::Fail(errno))
    }

    fn with_default(action: Action) -> Self {
        Self { ranges: BTreeMap::from([(0, action)]) }
    }

    /// Allows the given calls.
    pub fn allow(&mut self, calls: &[libc::c_long]) {
        for call in calls {
            self.put(*call, Action::Pass);
        }
    }

    /// Makes the given calls fail with `errno`.
    pub fn refuse(&mut self, calls: &[libc::c_long], errno: i32) {
        for call in calls {
            self.put(*call, Action::Fail(errno));
        }
    }

    /// Makes `call` fail with `errno` if one of the rules matches. Otherwise, the call is allowed. If `refuse_when` is
    /// called again for the same system call, the new rules are appended to the old ones.
    pub fn refuse_when(&mut self, call: libc::c_long, rules: Vec<SeccompRule>, errno: i32) {
        let before = match u32::try_from(call).map(|number| self.action(number)) {
            Ok(Action::FailWhen(before)) => before,
            _ => Vec::new(),
        };
        let rules = rules.into_iter().map(|rule| (rule, errno));
        self.put(call, Action::FailWhen(before.into_iter().chain(rules).collect()));
    }

    /// Sets the action of one system call. A negative number is ignored: it means that this architecture lacks the
    /// system call.
    fn put(&mut self, call: libc::c_long, action: Action) {
        let Ok(number) = u32::try_from(call) else { return };
        let before = self.action(number);
        self.ranges.entry(number + 1).or_insert(before);
        self.ranges.insert(number, action);
    }

    fn action(&self, number: u32) -> Action {
        self.ranges.range(..=number).next_back().map_or(Action::Pass, |(_, action)| action.clone())
    }

    /// Applies the filter to the calling thread, and to the threads and processes that it later starts.
    ///
    /// # Errors
    /// Fails with [`HardenError::Filter`] if the filter cannot be compiled for this processor, or if the
    /// kernel refuses it.
    pub fn apply(&self) -> Result<(), HardenError> {
        Ok(apply_filter(&self.program()?)?)
    }

    /// Compiles the filter to a seccomp program. The program kills a process that makes a system call of another
    /// architecture.
    ///
    /// # Errors
    /// Fails with [`HardenError::Filter`] if the library does not support this processor.
    pub fn program(&self) -> Result<BpfProgram, HardenError> {
        let here = std::env::consts::ARCH.try_into()?;
        let (pass, any) = (SeccompAction::Allow, SeccompAction::Errno(0));
        // Without rules, the library compiles the check of the architecture, followed by the action `pass`.
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

/// Compiles a binary search for the range that contains the loaded call number.
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
                // The program of the lower half is too long for the 8-bit offset of a conditional jump. The conditional
                // jump therefore skips an unconditional jump, which can go further.
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
    /// Whether two actions are equal, so that their ranges can be merged. Actions with rules are never equal,
    /// because rules cannot be compared.
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
                // If a rule does not match, its program skips the next instruction, which returns the error.
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
    // Instruction codes have 16 bits, and all codes that this module uses fit.
    sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt: 0, jf: 0, k }
}

/// The number of instructions in a program. The kernel accepts at most 4096.
fn length(program: &BpfProgram) -> u32 {
    u32::try_from(program.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition};

    use super::*;

    /// Returns the bytes of the `struct seccomp_data` of a system call.
    fn call(program: &[sock_filter], number: u32, arguments: [u64; 2]) -> Vec<u8> {
        let mut data = number.to_ne_bytes().to_vec();
        // The first instructions of a program check the architecture, so the second instruction contains the
        // architecture's number.
        data.extend(program[1].k.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        data.extend([0; 32]);
        data
    }

    /// Interprets the instructions of classic BPF that this module uses, as the kernel does.
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

    /// Creates a filter with many calls in no order, with gaps and adjacent numbers, and with rules for one call.
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
