"""Wrong answers to the tasks of chapter 13."""

from wrong_answers import Wrong

SENT = "comm.send(visitor, right)"
WRONG = {
    "sum_over_ranks": [
        Wrong("received from the wrong side", "comm.recv(left)", "comm.recv(right)", "three and more ranks", "waits for rank"),
        Wrong("nothing sent", SENT, "pass", "two ranks", "waits for rank"),
        Wrong("sent to itself", SENT, "comm.send(visitor, comm.rank)", "two ranks", "waits for rank"),
        Wrong("no neighbour at the end of the row", "right, left = (comm.rank + 1) % comm.size", "right, left = comm.rank + 1", "two ranks", "there is no rank 2: there are 0 to 1"),
        Wrong("no neighbour before the first rank", "(comm.rank - 1) % comm.size", "comm.rank - 1", "two ranks", "comm is rank 0 of 2"),
        Wrong("at least one step", "range(comm.size - 1)", "range(max(1, comm.size - 1))", "a single rank", "is wrong"),
        Wrong("only one rank returns", "return total", "return total if comm.rank == 0 else None", "two ranks", "the result of rank 1 of 2 should be an array"),
        Wrong("one array", "return total\n", "return total\n\n    return run(on_rank, len(xs), timeout=1)[0]\n", "two ranks", "a list with the results of 2 ranks"),
    ],
    "squares_over_ranks": [
        Wrong("right for two ranks only", "2 * x * comm.all_reduce(dy)", "x * comm.size * comm.all_reduce(dy)", "the gradient on three ranks", "is wrong"),
        Wrong("the neighbour's dy", "comm.all_reduce(dy)", "dys[(comm.rank + 1) % comm.size]", "two ranks worked by hand", "is wrong"),
    ],
    "head_parallel": [
        Wrong("heads divided evenly", "columns = slice(own.start * d, own.stop * d)", "n = len(w_o) // comm.size; columns = slice(comm.rank * n, comm.rank * n + n)", "heads that ranks cannot divide evenly", ""),
        Wrong("gathered, not summed", "comm.all_reduce(out)", "comm.all_gather(out)", "one head for each of two ranks", "has the wrong shape"),
    ],
    "ring_of_ranks": [
        Wrong("keys without values", "            comm.send(value, right)\n", "", "a ring of two", "waits for rank"),
        Wrong("values before keys", "key, value = comm.recv(left), comm.recv(left)", "value, key = comm.recv(left), comm.recv(left)", "a ring of two", ""),
        Wrong("queries travel", "comm.send(key, right)", "comm.send(query, right)", "a ring of two", "is wrong"),
        Wrong("right for two ranks only", "source = (comm.rank - hop) % comm.size", "source = 1 - comm.rank", "rings of three and four", "is wrong"),
    ],
}  # fmt: skip
