"""Which files with logic a command passes, seen by gdb. From the root of the project, with debug information:

    CARGO_PROFILE_DEV_DEBUG=1 cargo build -p leasehold-cli --all-features
    gdb -nx -batch -x xtask/walk.py --args target/debug/leasehold run x -- true

Every function of ours has a breakpoint, which goes when it is hit. A file counts if one of them ran that can go one way or
another: it has a conditional jump. What the compiler has inlined counts for the file of its caller, and the dead-man, which is
a process of its own, does not count.
"""

import os
import re
import subprocess

import gdb


def functions(program, base):
    """The address and size of every function of this workspace's crates."""
    for line in subprocess.run(["nm", "-S", program], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "tT" and "leasehold" in words[3] and "drop_in_place" not in words[3]:
            yield base + int(words[0], 16), int(words[1], 16)


def loaded_at(program):
    """Where the program begins in memory."""
    mappings = gdb.execute("info proc mappings", to_string=True).splitlines()
    return next(int(line.split()[0], 16) for line in mappings if line.rstrip().endswith(program))


def decides(start, size):
    """Whether a function has a conditional jump."""
    code = gdb.selected_inferior().architecture().disassemble(start, start + size - 1)
    return any(re.match(r"j(?!mp)", instruction["asm"]) for instruction in code)


class Passed(gdb.Breakpoint):
    """Notes the file of the function that it stands in, once."""

    files = set()

    def __init__(self, start, size):
        super().__init__(f"*{start}", internal=True)
        self.start, self.size = start, size

    def stop(self):
        self.enabled = False
        table = gdb.find_pc_line(self.start + 4).symtab
        if table and "crates/leasehold" in table.filename and decides(self.start, self.size):
            self.files.add(table.filename[table.filename.rindex("crates/") :])
        return False


for setting in ["pagination off", "confirm off", "print thread-events off", "print inferior-events off"]:
    gdb.execute(f"set {setting}")
for signal in ["SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2"]:
    gdb.execute(f"handle {signal} nostop noprint pass", to_string=True)
program = os.path.realpath(gdb.current_progspace().filename)
gdb.execute("starti", to_string=True)
all_of_them = [Passed(start, size) for start, size in functions(program, loaded_at(program))]
gdb.execute("continue")
for crate in sorted({file.split("/")[1] for file in Passed.files}):
    own = sorted(file for file in Passed.files if file.split("/")[1] == crate)
    print(f"{len(own):>4}  {crate}: " + " ".join(file.split("/src/")[1] for file in own))
print(f"{len(Passed.files):>4}  of {len(all_of_them)} functions in all")
