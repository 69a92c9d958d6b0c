"""Privacy budget over many runs and streams: what each spent on which data, and a refusal beyond it.

book = BudgetBook("budget.db", "visits")
book.grant(epsilon=4, delta=1e-6, unit="patient")
PrivacyEngine(book=book)                          # or Stream(…, book=book), or book.reserve(mechanism)
"""

from anechoic.budget.book import BudgetBook

__all__ = ["BudgetBook"]
