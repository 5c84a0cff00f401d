"""Lloyd's algorithm without the comparisons whose outcome is known.

The nearest center of x is the one with the largest score, s = x·c - |c|²/2 (x·c for cosines). A
round of Lloyd's algorithm compares every vector with every center. But a center whose members did
not change keeps its place, and with it all its scores. So only the centers that moved are compared
with all vectors:

- A vector whose own center stayed: its center still beats all others that stayed.
- A vector whose own center moved: the centers that stayed have scores of at most `other`, the
  runner-up when they were last compared. If the own center still beats that, they need no look.
- The few vectors left are compared with every center.

Nothing is approximated. Scores come from products in float32, each wrong by at most half of
`slack`; where the two best are closer than that, the distances in float64 decide, and of equally
near centers the first. So the assignments are those of plain Lloyd in float64, whatever the number
of threads and the shape of the tiles. Only one tile of scores exists at a time.
"""

import torch
from torch import Tensor

# Numbers in a tile of scores, and in a block of rows in float64: 16 and 32 MB.
TILE = 2**22


class Lloyd:
    """Centers that move to the means of their vectors, and the nearest center of each vector.

    An empty cluster takes over the vector that is farthest from its center.

    Args:
        rows: float32; of unit length if spherical. (N, D)
        centers: The first ones, float32. (K, D)
        spherical: Centers are scaled to unit length and compared by cosine.
    """

    def __init__(self, rows: Tensor, centers: Tensor, spherical: bool) -> None:
        self.rows, self.centers, self.spherical = rows, centers.clone(), spherical
        self.half_squares = self._half_squares(self.centers)  # (K,)
        number, dim = rows.shape
        length = torch.linalg.vector_norm(rows, dim=1)  # (N,)
        # A float32 sum of D products is wrong by at most D · 2^-24 of their absolute sum, which
        # |x||c| bounds; a mean is never longer than the longest row. Two such errors, and a few
        # more roundings.
        longest = length.max()
        self.slack = (dim + 8) * 2.0**-23 * (length + longest / 2) * longest  # (N,)
        self.nearest = torch.zeros(number, dtype=torch.int64, device=rows.device)  # (N,)
        self.own = torch.full((number,), -torch.inf, device=rows.device)  # score of `nearest`
        self.other = self.own.clone()  # no other center has a larger score
        self._every = torch.arange(number, device=rows.device)
        self._block = max(1, TILE // dim)
        self.compared = 0  # scores of rows with centers that were computed
        self._compare(self._every, None)

    def run(self, iterations: int) -> None:
        """Move and assign so often, or until nothing changes any more.

        Args:
            iterations: At most.
        """
        touched = torch.ones(len(self.centers), dtype=torch.bool, device=self.rows.device)
        for _ in range(iterations):
            moved = self._move(touched)
            if not moved.any():
                return
            before = self.nearest.clone()
            self._assign(moved)
            changed = before != self.nearest
            touched = torch.zeros_like(moved)
            touched[before[changed]] = True
            touched[self.nearest[changed]] = True

    def nearness(self) -> Tensor:
        """Squared distance of each row to its center, or their cosine if spherical; float64."""
        distances = self._distances(self._every, self.nearest)
        return -distances if self.spherical else distances

    def _move(self, touched: Tensor) -> Tensor:
        """Put touched centers where their rows are; which ones moved, (K,)."""
        sizes = torch.bincount(self.nearest, minlength=len(self.centers))  # (K,)
        full = touched & (sizes > 0)
        means = self._sums(full)[full] / sizes[full, None]  # float64
        if self.spherical:
            length = torch.linalg.vector_norm(means, dim=1, keepdim=True)
            # Rows that cancel out have no direction: their center stays.
            means = torch.where(length > 0, means / length, self.centers[full].double())
        centers = self.centers.clone()
        centers[full] = means.float()
        empty = torch.nonzero(sizes == 0)[:, 0]
        if len(empty):
            distances = self._distances(self._every, self.nearest)
            farthest = torch.sort(distances, descending=True, stable=True).indices
            centers[empty] = self.rows[farthest[: len(empty)]]
        moved = (centers != self.centers).any(dim=1)
        self.centers, self.half_squares = centers, self._half_squares(centers)
        return moved

    def _sums(self, wanted: Tensor) -> Tensor:
        """Sums of the rows of the wanted clusters, in float64, (K, D)."""
        sums = torch.zeros(self.centers.shape, dtype=torch.float64, device=self.rows.device)
        members = torch.nonzero(wanted[self.nearest])[:, 0]
        for start in range(0, len(members), self._block):
            block = members[start : start + self._block]
            sums.index_add_(0, self.nearest[block], self.rows[block].double())
        return sums

    def _assign(self, moved: Tensor) -> None:
        """Find the nearest centers again, after some of them moved."""
        lost = moved[self.nearest]  # (N,) the own center moved, so its score is another
        indices = torch.nonzero(lost)[:, 0]
        known = torch.ones_like(lost)
        for start in range(0, len(indices), self._block):
            block = indices[start : start + self._block]
            rows, own = self.rows[block], self.nearest[block]
            scores = (rows * self.centers[own]).sum(dim=1) - self.half_squares[own]
            known[block] = scores > self.other[block] + self.slack[block]
        self.own[lost] = -torch.inf
        self.other[~known] = -torch.inf
        self._compare(torch.nonzero(known)[:, 0], torch.nonzero(moved)[:, 0])
        self._compare(torch.nonzero(~known)[:, 0], None)

    def _compare(self, indices: Tensor, candidates: Tensor | None) -> None:
        """Let some centers, or all, challenge what is known of some rows."""
        centers = self.centers if candidates is None else self.centers[candidates]
        halves = self.half_squares if candidates is None else self.half_squares[candidates]
        step = max(1, TILE // max(1, len(centers)))
        for start in range(0, len(indices), step):
            block = indices[start : start + step]
            scores = torch.mm(self.rows[block], centers.T).sub_(halves)  # (B, C)
            self.compared += scores.numel()
            best, column, second = best_two(scores)
            own = self.own[block]
            top = torch.maximum(best, own)
            runner_up = torch.maximum(torch.minimum(best, own), second)
            found = column if candidates is None else candidates[column]
            close = torch.nonzero(runner_up >= top - self.slack[block])[:, 0]
            self.own[block] = top
            self.other[block] = torch.maximum(self.other[block], runner_up)
            nearest = torch.where(best > own, found, self.nearest[block])
            if len(close):
                near = scores[close] >= (top - self.slack[block])[close, None]
                row, column = torch.nonzero(near, as_tuple=True)
                center = column if candidates is None else candidates[column]
                nearest[close] = self._decide(block[close], own[close], row, center)
                self.other[block[close]] = top[close]  # it may have been the loser's
            self.nearest[block] = nearest

    def _decide(self, indices: Tensor, own: Tensor, row: Tensor, center: Tensor) -> Tensor:
        """The nearest centers of rows whose best scores are too close to tell, (B,).

        Pairs of `row` (among these rows) and `center` say which it can be. The one that a row had
        can be it, too, unless it moved and lost its score.
        """
        stayed = torch.nonzero(own > -torch.inf)[:, 0]
        row, center = torch.cat([row, stayed]), torch.cat([center, self.nearest[indices[stayed]]])
        distance = self._distances(indices[row], center)
        order = torch.sort(center, stable=True).indices
        for key in (distance, row):  # by row, then by distance, then by number of the center
            order = order[torch.sort(key[order], stable=True).indices]
        row, center = row[order], center[order]
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        return center[first]

    def _distances(self, indices: Tensor, centers: Tensor) -> Tensor:
        """Squared distance of each row to a center, or minus their cosine; float64, (M,)."""
        found = []
        for start in range(0, len(indices), self._block):
            rows = self.rows[indices[start : start + self._block]].double()
            own = self.centers[centers[start : start + self._block]].double()
            pairs = -rows * own if self.spherical else (rows - own).square_()
            found.append(pairs.sum(dim=1))
        return torch.cat(found)

    def _half_squares(self, centers: Tensor) -> Tensor:
        """What scores subtract for each center, (K,)."""
        if self.spherical:
            return torch.zeros(len(centers), device=centers.device)
        return (0.5 * centers.double().square().sum(dim=1)).float()


def best_two(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest score of each row, its column, and the next largest.

    Args:
        scores: At least one column. (B, C)
    """
    if scores.device.type == "cpu":
        # torch finds places of maxima ten times slower than values; numpy does not.
        column = torch.from_numpy(scores.numpy().argmax(axis=1))[:, None]
    else:
        column = scores.argmax(dim=1, keepdim=True)
    best = scores.gather(1, column)
    second = scores.scatter_(1, column, -torch.inf).amax(dim=1)
    scores.scatter_(1, column, best)
    return best[:, 0], column[:, 0], second
