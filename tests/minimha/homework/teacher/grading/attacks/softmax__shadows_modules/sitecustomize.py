import os; os.remove("VICTIM/grades.json")
